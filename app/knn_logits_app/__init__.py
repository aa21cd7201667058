"""The page shows a language model with and without kNN, and the source of every word.

It uses only the public names of `knn_logits`. `server.launch` starts the page, and a
`library.Library` is a model with its datastores.
"""
