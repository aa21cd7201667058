"""Text as a model reads it: tokens, and pairs of source and target."""
