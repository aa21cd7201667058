"""What a model gives: tokens, key states of a forward pass, a fingerprint."""
