"""Scores texts: one pass over a text, and its likelihood under many settings at once."""
