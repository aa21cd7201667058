"""Where the key lives in a model, and the hooks that take it during a forward pass."""
