"""Nearest-neighbor search over keys: a protocol, an exact reference, and FAISS."""
