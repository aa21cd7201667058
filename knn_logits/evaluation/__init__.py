"""Perplexity of texts under the model, its neighbors and their mixture."""
