"""`ExactIndex` computes every distance with torch. It is the reference for FAISS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.index.base import nearest_columns, wrong_shape
from knn_logits.metrics import COMPARISONS, Metric

# The most distances computed at once, which are 256 MB of float32.
_BLOCK = 64 << 20


class TorchIndex:
    """An index that compares with all keys, which are on one device. Some may be removed."""

    nprobe: int | None = None
    metric: Metric
    size: int
    dim: int
    reads_disk = False  # whether a search reads keys from the disk
    _keys: Tensor
    _norms: Tensor | None
    _ids: Tensor | None = None

    @property
    def bytes(self) -> int:
        return self._keys.nbytes + (0 if self._norms is None else self._norms.nbytes)

    @property
    def device(self) -> torch.device:
        return self._keys.device

    def _rows_at_once(self, k: int) -> int:
        raise NotImplementedError

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """`search` for that many queries."""
        raise NotImplementedError

    def remove(self, ids: Array) -> None:
        present = torch.arange(self.size) if self._ids is None else self._ids.cpu()
        stays = ~torch.isin(present, torch.from_numpy(np.asarray(ids, np.int64)))
        mask = stays.to(self._keys.device)
        self._keys = self._keys[mask]
        self._norms = None if self._norms is None else self._norms[mask]
        self._ids = present[stays].to(self._keys.device)
        self.size = len(self._ids)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Searches as `Index.search` says. Neighbors are sorted, with the nearest first."""
        if queries.dim() != 2 or queries.shape[1] != self.dim:
            raise wrong_shape(queries, self.dim)
        device, k = self._keys.device, min(k, self.size)
        queries = queries.to(device, torch.float32)
        if not k or not len(queries):
            empty = torch.empty(len(queries), 0, dtype=torch.float32, device=device)
            return empty, empty.long()
        parts = [self._search(part, k) for part in queries.split(self._rows_at_once(k))]
        nearness, ids = (torch.cat(part) for part in zip(*parts, strict=True))
        broken = ~queries.isfinite().all(dim=-1, keepdim=True)
        return nearness.masked_fill(broken, -torch.inf), ids.masked_fill(broken, -1)


class ExactIndex(TorchIndex):
    """Exact search over keys in float32, stored relative to `center`, their mean if it is None."""

    def __init__(
        self,
        keys: Tensor,
        metric: Metric,
        device: torch.device | str = "cpu",
        center: Tensor | None = None,
    ) -> None:
        self.metric: Metric = metric
        self.size, self.dim = int(keys.shape[0]), int(keys.shape[1])
        keys = keys.to(device=device, dtype=torch.float32)
        self._mean = torch.zeros(self.dim, dtype=torch.float32, device=keys.device)
        comparison = COMPARISONS[metric]
        if comparison.centered and self.size:
            self._mean = keys.mean(dim=0) if center is None else center.to(keys)
            keys = keys - self._mean
        self._keys = comparison.prepared(keys)
        self._norms = comparison.norms(self._keys)

    @classmethod
    def joined(cls, parts: Sequence[ExactIndex]) -> ExactIndex:
        """Joins indexes with the same center into one. The ids count through all of them."""
        index = cls.__new__(cls)
        first = parts[0]
        index.metric, index.dim, index._mean = first.metric, first.dim, first._mean
        index._keys = torch.cat([part._keys for part in parts])
        index.size = len(index._keys)
        norms = [part._norms for part in parts if part._norms is not None]
        index._norms = torch.cat(norms) if norms else None
        return index

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Array],
        size: int,
        dim: int,
        metric: Metric,
        device: torch.device | str = "cpu",
    ) -> ExactIndex:
        """Gathers batches of keys, [rows, dim] each, into an index of `size` keys."""
        keys = np.empty((size, dim), np.float32)
        first = 0
        for batch in batches:
            keys[first : first + len(batch)] = batch
            first += len(batch)
        return cls(torch.from_numpy(keys), metric, device)

    def _rows_at_once(self, k: int) -> int:
        return max(1, _BLOCK // self.size)

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        comparison = COMPARISONS[self.metric]
        queries = comparison.prepared(queries - self._mean)
        scores, ids = nearest_columns(comparison.scores(queries, self._keys, self._norms), k)
        nearness = comparison.of_scores(scores, queries)
        return nearness, ids if self._ids is None else self._ids[ids]
