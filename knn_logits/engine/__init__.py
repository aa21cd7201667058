"""The outputs of a model: tokens, key states of a forward pass, a fingerprint."""
