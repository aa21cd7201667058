"""Forty random documents and their keys: 1,200 entries of 8 numbers."""

import numpy as np
from handmade import make_store

_RANDOM = np.random.default_rng(3)
DOCUMENTS = [_RANDOM.integers(0, 100, 31).tolist() for _ in range(40)]
KEYS = _RANDOM.standard_normal((1200, 8)).astype(np.float16)


def make_random(folder):
    """Writes the datastore of these documents and keys."""
    return make_store(folder, DOCUMENTS, KEYS, shard_bytes=5000)
