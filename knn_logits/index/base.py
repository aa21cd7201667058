"""What an index is to the rest of the package. It knows vectors and numbers, not tokens.

Where the backends differ:

- `ExactIndex` (torch) computes every distance; on a GPU when the keys are there.
- `FaissIndex` approximates unless its factory is "Flat"; distances are those of the compressed
  vectors. On the CPU it takes and gives CPU tensors, on a GPU tensors stay on the device.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.config import Metric


class Index(Protocol):
    """Finds the nearest of `size` vectors.

    Attributes:
        metric: How vectors are compared.
        dim: Their length.
        size: Their number; ids run from 0 to size - 1 unless some were removed.
    """

    metric: Metric
    dim: int
    size: int

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k nearest vectors of each query.

        Args:
            queries: float32 [rows, dim], on any device.
            k: At least 1; more than `size` gives padding.

        Returns:
            distances: float32 [rows, columns], squared distances for "l2", similarities else.
            ids: int64 [rows, columns], -1 where nothing was found. Columns are at most k; their
                order is not promised, but padding stands last, at an infinite distance. A query
                that is not finite finds nothing.
        """
        ...

    def reconstruct(self, ids: Array) -> Tensor:
        """The vectors as the index keeps them, compressed or not, by number.

        Args:
            ids: int64 [rows], of vectors that were not removed.

        Returns:
            float32 [rows, dim].
        """
        ...

    def remove(self, ids: Array) -> None:
        """Takes vectors out; the others keep their numbers.

        Args:
            ids: int64 [removed].
        """
        ...


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Computes in the tensors' own type, also where the caller's `torch.autocast` is at work."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def normalised(vectors: Tensor) -> Tensor:
    """Vectors of length 1 (a zero vector stays zero), for the metric "cosine"."""
    return torch.nn.functional.normalize(vectors, dim=-1)


def pairwise(queries: Tensor, keys: Tensor, metric: Metric) -> Tensor:
    """Distances between each query and its own keys, computed from differences.

    Args:
        queries: float32 [rows, dim].
        keys: float32 [rows, k, dim].
        metric: "l2", "ip" or "cosine".

    Returns:
        float32 [rows, k], squared distances for "l2", similarities else.
    """
    if metric == "l2":
        return (keys - queries.unsqueeze(1)).square().sum(dim=-1)
    if metric == "cosine":
        queries, keys = normalised(queries), normalised(keys)
    with full_precision(keys.device):
        return torch.bmm(keys, queries.unsqueeze(-1)).squeeze(-1)
