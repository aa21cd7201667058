"""Experiments: the papers' studies, learned memories, datastores of earlier systems."""
