"""From a stranger's document to text with its places.

Each module reads one kind of file, with libraries of the extra `documents` where Python's own do
not suffice. They run in a child process alone, which `knn_logits.corpus.extracting` starts.
"""
