"""How likely a text is: one pass over it, and the likelihood under many settings at once."""
