"""Distances in place of nearness, plain ones too, and what a retriever is asked and finds."""

import numpy as np

from knn_logits.metrics import as_distance
from knn_logits.mixture.vote import Weighing
from knn_logits.search.neighbors import Neighbors, Prefixes


def from_distances(ids, distances, values, metric="l2", **fields):
    """Neighbors of distances, or of similarities, as the metric has them."""
    return Neighbors(ids, as_distance(distances, metric), values, metric, **fields)


def by_distance(index, queries, k):
    """What an index finds: squared distances ("l2") or similarities, and ids."""
    nearness, ids = index.search(queries, k)
    return (-nearness if index.metric == "l2" else nearness), ids


def all_distances(queries, keys, metric):
    """float64 [rows, keys], each pair on its own."""
    queries, keys = queries.double().numpy(), keys.double().numpy()
    if metric == "l2":
        return ((queries[:, None] - keys[None]) ** 2).sum(-1)
    if metric == "cosine":
        queries = queries / np.linalg.norm(queries, axis=-1, keepdims=True)
        keys = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    return queries @ keys.T


def weighing(retriever):
    """How a memory with this retriever weighs neighbors."""
    return Weighing.of(retriever.config)


def search_steps(retriever, states, ids):
    """The neighbors at the last positions of texts: states [rows, positions, dim]."""
    queries = states.transpose(0, 1).reshape(-1, states.shape[-1])
    return retriever.search(queries, Prefixes.of_steps(ids, states.shape[1]))


def prefixes_of(texts):
    """Texts of tokens, one after another."""
    ends = np.cumsum([len(text) for text in texts])
    tokens = np.concatenate([np.array(text, np.int64) for text in texts])
    return Prefixes(tokens, np.concatenate([[0], ends[:-1]]), ends)
