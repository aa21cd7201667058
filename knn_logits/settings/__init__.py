"""Every setting: its name, range, default and help, declared once."""
