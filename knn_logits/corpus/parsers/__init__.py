"""Turns untrusted documents into text with its places.

Each module reads one kind of file. Where Python's own libraries do not suffice, it uses those of the
extra `documents`. The modules run only in a child process that `knn_logits.corpus.extracting`
starts.
"""
