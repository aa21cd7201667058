"""Perplexity, BLEU, and settings that are tuned on held-out text."""
