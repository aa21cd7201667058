"""A server with OpenAI's interface for a model with its datastores. It names the sources.

It uses the public names of `knn_logits`, and parts of the page. `server.serve` starts it, and
`served.Served` is a model with its datastores.
"""
