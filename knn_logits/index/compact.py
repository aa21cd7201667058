"""`CompactIndex`: exact search over keys of one, two or four bytes a number, usual on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.index.base import pairwise
from knn_logits.index.exact import TorchIndex
from knn_logits.metrics import COMPARISONS, Metric

Form = Literal["float32", "whole", "bytes"]

# The most numbers of a block of keys, and of its distances: 256 MB of float32 each.
_BLOCK = 64 << 20
# A second look at one byte a number compares so many times k keys, and some more.
_TIMES, _EXTRA = 2, 64
# The share of a GPU's free memory that keys may take. The rest is for the model and the blocks.
_SHARE = 0.7
# Keys that take less than this in float32 are kept so: they need no conversion in each search.
_FLOAT32_SHARE = 0.1


def form_for(size: int, dim: int, itemsize: int, free: int) -> Form | None:
    """Chooses how keys are kept on a device."""
    most = _SHARE * free - 8 * _BLOCK
    if size * (dim * 4 + 4) <= min(most, _FLOAT32_SHARE * free):
        return "float32"
    if size * (dim * itemsize + 4) <= most:
        return "whole"
    return "bytes" if size * (dim + 4) <= most else None


class CompactIndex(TorchIndex):
    """Exact search over `batches` of keys, float32 [rows, dim] each, block by block.

    With `dtype` float32, keys are kept as they are compared. With `keys`, one byte of each number
    is kept. The nearest `2 k + 64` by these bytes are then compared again by the keys themselves,
    so that distances are exact, and a neighbor is missed only if its bytes put it behind all of
    these.
    """

    def __init__(
        self,
        batches: Callable[[], Iterable[Array]],
        size: int,
        dim: int,
        metric: Metric,
        device: torch.device | str = "cpu",
        *,
        dtype: torch.dtype = torch.float16,
        keys: Callable[[Array], Array] | None = None,
    ) -> None:
        self.metric: Metric = metric
        self.size, self.dim = size, dim
        self._keys_of = keys
        mean, low, high = np.zeros(dim), np.full(dim, np.inf), np.full(dim, -np.inf)
        for batch in batches():
            wide = batch.astype(np.float64)
            mean += wide.sum(axis=0) / max(1, size)
            low, high = np.minimum(low, wide.min(axis=0)), np.maximum(high, wide.max(axis=0))
        self._comparison = COMPARISONS[metric]
        mean = mean if self._comparison.centered else np.zeros(dim)
        self._mean = torch.from_numpy(mean).float().to(device)
        self._scale: Tensor | None = None
        if keys is not None:
            unit = self._comparison.unit_length
            wide = np.ones(dim) if unit else np.maximum(high - mean, mean - low)
            largest = torch.from_numpy(np.maximum(wide, 1e-12) / 127)
            self._scale = largest.float().to(device)
        dtype = torch.int8 if keys is not None else dtype
        self._keys = torch.empty(size, dim, dtype=dtype, device=device)
        norms = [] if size else [self._comparison.norms(self._keys.float())]
        first = 0
        for batch in batches():
            part = slice(first, first + len(batch))
            self._keys[part] = self._encoded(torch.from_numpy(batch).to(device))
            norms.append(self._comparison.norms(self._decoded(part)))
            first += len(batch)
        present = [part for part in norms if part is not None]
        self._norms = torch.cat(present) if present else None

    @property
    def _is_prepared(self) -> bool:
        """Whether keys are kept as they are compared, centered for instance."""
        return self._keys.dtype in (torch.int8, torch.float32)

    def _encoded(self, keys: Tensor) -> Tensor:
        if self._is_prepared:
            keys = self._comparison.prepared(keys.float() - self._mean)
        if self._scale is not None:
            keys = (keys / self._scale).round_().clamp_(-127, 127)
        return keys.to(self._keys.dtype)

    def _decoded(self, part: slice) -> Tensor:
        """Keys as they are compared, float32."""
        keys = self._keys[part].float()
        if self._scale is not None:
            return keys.mul_(self._scale)
        return keys if self._is_prepared else self._comparison.prepared(keys.sub_(self._mean))

    def _stored(self, rows: Tensor) -> Tensor:
        keys = self._keys[rows].float()
        if self._scale is not None:
            keys = keys.mul_(self._scale)
        return keys.add_(self._mean) if self._is_prepared else keys

    def _candidates(self, k: int) -> int:
        return k if self._keys_of is None else min(self.size, _TIMES * k + _EXTRA)

    def _rows_at_once(self, k: int) -> int:
        width = 1 if self._keys_of is None else self.dim
        return max(1, _BLOCK // (self._candidates(k) * width))

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        candidates = self._candidates(k)
        compared = self._comparison.prepared(queries - self._mean)
        best: tuple[Tensor, Tensor] | None = None
        step = max(1, _BLOCK // max(len(queries), self.dim))
        for first in range(0, self.size, step):
            part = slice(first, min(first + step, self.size))
            keys = self._decoded(part)
            norms = None if self._norms is None else self._norms[part]
            scores = self._comparison.scores(compared, keys, norms)
            nearest = torch.topk(scores, min(candidates, scores.shape[1]), dim=-1)
            nearness, ids = nearest.values, nearest.indices + first
            if best is not None:
                nearness, ids = torch.cat([best[0], nearness], 1), torch.cat([best[1], ids], 1)
                nearness, order = torch.topk(nearness, min(candidates, nearness.shape[1]), dim=-1)
                ids = ids.gather(1, order)
            best = nearness, ids
        assert best is not None
        nearness, ids = best
        nearness = self._comparison.of_scores(nearness, compared)
        if self._ids is not None:
            ids = self._ids[ids]
        return (nearness, ids) if self._keys_of is None else self._looked_at(queries, ids, k)

    def _looked_at(self, queries: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Compares the nearest keys again, by the keys themselves."""
        assert self._keys_of is not None
        unique, places = np.unique(ids.cpu().numpy(), return_inverse=True)
        keys = torch.from_numpy(self._keys_of(unique)).to(queries.device, torch.float32)
        columns = torch.from_numpy(places.reshape(ids.shape)).to(queries.device)
        nearness, order = torch.topk(pairwise(queries, keys[columns], self.metric), k, dim=-1)
        return nearness, ids.gather(1, order)
