"""Traces which entries caused which token: records a generation, assembles it and shows it."""
