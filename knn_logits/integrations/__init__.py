"""knn-logits inside other programs; each module needs the program that it is named after."""
