"""`python -m knn_logits` is the command `knn-logits`."""

from knn_logits.cli import main

main()
