"""Turns untrusted documents into text with its places.

Each module reads one kind of file, with the libraries of the extra `documents` where Python's own
do not suffice. The modules run only in a child process, which `knn_logits.corpus.extracting`
starts.
"""
