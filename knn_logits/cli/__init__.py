"""The command `knn-logits`: parse, call, print."""
