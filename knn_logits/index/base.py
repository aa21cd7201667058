"""The protocol of an index. It knows vectors and numbers, but no tokens."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import SearchError
from knn_logits.metrics import COMPARISONS, Metric


class Index(Protocol):
    """Finds the nearest of `size` vectors."""

    metric: Metric  # How vectors are compared
    dim: int  # Length of a vector
    size: int  # Number of vectors. Ids run from 0 to size - 1, unless vectors were removed
    nprobe: int | None  # inverted lists to visit; None without inverted lists

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Nearness, larger is nearer, and ids of the k nearest of queries, float32 [rows, dim].

        There are at most k columns, in no order, with padding (-inf, -1) last. A query that is not
        finite finds nothing.
        """
        ...

    def remove(self, ids: Array) -> None:
        """Removes vectors. The others keep their ids."""
        ...


def wrong_shape(queries: Tensor, dim: int) -> SearchError:
    return SearchError(
        f"the queries have shape {tuple(queries.shape)}, but keys have dimension {dim}: pass "
        "queries [rows, dim] from the model that built the datastore"
    )


def prepared(vectors: Array, metric: Metric) -> Array:
    """Vectors as a metric compares them, float32."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    return COMPARISONS[metric].prepared(torch.from_numpy(vectors)).numpy()


def nearest_columns(scores: Tensor, k: int, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k largest scores of each row, and their columns. Of equal ones, the lowest ids win."""
    # On a GPU `topk` decides, since to ask for ties would wait for its result.
    more = scores.shape[-1] > k > 0 and scores.device.type == "cpu"
    values, columns = scores.topk(k + more, dim=-1)
    if not more:
        return values, columns
    tied = (values[:, k - 1] == values[:, k]) & values[:, k].isfinite()
    values, columns = values[:, :k], columns[:, :k]
    for row in tied.nonzero()[:, 0].tolist():
        last = values[row, k - 1]
        equal = (scores[row] == last).nonzero()[:, 0]
        if ids is not None:
            equal = equal[ids[row, equal].argsort()]
        above = columns[row][values[row] > last]
        columns[row] = torch.cat([above, equal[: k - len(above)]])
    return values, columns
