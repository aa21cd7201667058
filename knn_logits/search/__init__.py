"""From queries to neighbors: one datastore, several, pointers, keys on demand, the ∞-gram."""
