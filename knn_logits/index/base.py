"""The protocol of an index. It knows vectors and numbers, but no tokens.

The backends differ in this:

- `ExactIndex` (torch) computes every distance, on the device of the keys.
- `CompactIndex` (torch) computes every distance as well, from keys of two bytes or one a number.
- `FaissIndex` approximates, unless its factory is "Flat". Its distances are those of the compressed
  vectors. On the CPU it takes and returns CPU tensors. On a GPU tensors stay on the device.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import SearchError
from knn_logits.metrics import COMPARISONS, Metric


class Index(Protocol):
    """Finds the nearest of `size` vectors.

    Attributes:
        metric: How vectors are compared.
        dim: Length of a vector.
        size: Number of vectors. Ids run from 0 to size - 1, unless vectors were removed.
        nprobe: Inverted lists visited for each query; None for an index without inverted lists.
    """

    metric: Metric
    dim: int
    size: int
    nprobe: int | None

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Finds the k nearest vectors of each query.

        Args:
            queries: float32 [rows, dim], on any device.

        Returns:
            nearness: float32 [rows, columns], larger is nearer; -inf for padding.
            ids: int64 [rows, columns], -1 for padding. There are at most k columns, in no
                particular order, with padding last. A query that is not finite finds nothing.
        """
        ...

    def reconstruct(self, ids: Array) -> Tensor:
        """Returns some vectors as the index stores them, which may be compressed.

        Args:
            ids: int64 [rows], the ids of vectors that were not removed.

        Returns:
            float32 [rows, dim].
        """
        ...

    def remove(self, ids: Array) -> None:
        """Removes vectors. The others keep their ids.

        Args:
            ids: int64 [removed], the ids of the vectors to remove.
        """
        ...


def wrong_shape(queries: Tensor, dim: int) -> SearchError:
    """The error for queries that are not [rows, dim]."""
    return SearchError(
        f"the queries have shape {tuple(queries.shape)}, but keys have dimension {dim}: pass "
        "queries [rows, dim] from the model that built the datastore"
    )


def kept_after(present: Tensor | None, size: int, gone: Array) -> tuple[Tensor, Tensor]:
    """Finds the vectors that stay when some are removed.

    Args:
        present: int64 [size], the ids of the present vectors; None for 0 to size - 1.

    Returns:
        Whether each present vector stays, bool [size]; and the ids of those that stay, int64. Both
        are on the CPU.
    """
    ids = torch.arange(size) if present is None else present.cpu()
    stays = ~torch.isin(ids, torch.from_numpy(np.asarray(gone, np.int64)))
    return stays, ids[stays]


def without_broken(queries: Tensor, nearness: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Lets queries that are not finite find nothing."""
    broken = ~queries.isfinite().all(dim=-1, keepdim=True)
    return nearness.masked_fill(broken, -torch.inf), ids.masked_fill(broken, -1)


def prepared(vectors: Array, metric: Metric) -> Array:
    """Returns vectors as a metric compares them, float32."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    return COMPARISONS[metric].prepared(torch.from_numpy(vectors)).numpy()


def pairwise(queries: Tensor, keys: Tensor, metric: Metric) -> Tensor:
    """Computes how near each query's own keys are, from their differences.

    Args:
        queries: float32 [rows, dim].
        keys: float32 [rows, k, dim].

    Returns:
        float32 [rows, k], larger is nearer.
    """
    return COMPARISONS[metric].pairwise(queries, keys)
