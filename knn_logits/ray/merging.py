"""Merges what the shards of an index found. Arrays only: nothing here knows of Ray."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from knn_logits.arrays import Array
from knn_logits.index.base import padding_distance
from knn_logits.settings.config import Metric

Found = tuple[Array, Array]


def ranges(entries: int, shards: int) -> list[tuple[int, int]]:
    """Cuts the entries of a datastore into ranges of nearly equal length, one for each shard.

    Args:
        entries: Number of entries.
        shards: Number of shards. No shard is empty, so there may be fewer.
    """
    shards = max(1, min(shards, entries))
    ends = [entries * number // shards for number in range(shards + 1)]
    return list(itertools.pairwise(ends))


def merged(parts: Sequence[Found], k: int, metric: Metric, rows: int) -> Found:
    """Selects the k nearest of what all shards found.

    Args:
        parts: What each shard found: distances, float32 [rows, columns], and ids of the whole
            datastore, int64 [rows, columns], -1 for padding.
        k: Number of neighbors.
        metric: Of the distances.
        rows: Number of queries, which counts where there are no parts.

    Returns:
        distances: float32 [rows, at most k], nearest first.
        ids: int64 of the same shape. Of equally near entries the one with the smaller id comes
            first, and padding comes last.
    """
    if not parts:
        return np.empty((rows, 0), np.float32), np.empty((rows, 0), np.int64)
    distances = np.concatenate([one for one, _ in parts], axis=1)
    ids = np.concatenate([one for _, one in parts], axis=1)
    distances = np.where(ids < 0, np.float32(padding_distance(metric)), distances)
    near = distances if metric == "l2" else -distances
    order = np.lexsort((ids, near), axis=1)[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(ids, order, axis=1)
