"""Nearest-neighbor search over keys: one protocol, an exact reference, and FAISS."""
