"""`CompactIndex`: exact search over keys as they are stored, or one byte a number, on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.index.base import nearest_columns
from knn_logits.index.exact import TorchIndex
from knn_logits.metrics import COMPARISONS, Metric, full_precision

Form = Literal["whole", "bytes"]

# Maximum number of scores of a block of keys, and of gathered keys: 512 MB of float32 each.
_BLOCK = 128 << 20
# Number of candidates whose distances are computed in float32: this multiple of k, and some more.
_TIMES, _EXTRA = 2, 64
# The share of a GPU's free memory that keys may take. The rest is for the model and the blocks.
_SHARE = 0.7
# The best scores are searched among the maxima of groups of this size.
_GROUP = 128


def form_for(size: int, dim: int, itemsize: int, free: int) -> Form | None:
    """Chooses how keys are kept on a device with `free` bytes."""
    most = _SHARE * free - 8 * _BLOCK
    if size * (dim * itemsize + 4) <= most:
        return "whole"
    return "bytes" if size * (dim + 4) <= most else None


class CompactIndex(TorchIndex):
    """Exact search over `batches` of keys, float32 [rows, dim] each, block by block.

    All keys are compared in the precision in which they are kept. The distances of the nearest
    `2 k + 64` are then computed again in float32, so that a neighbor is missed only if rounding
    puts it behind all of these. With `keys`, one byte of each number is kept, and the keys
    themselves are read again for the second step.
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
        self._keys_of, self.reads_disk = keys, keys is not None
        self._comparison = COMPARISONS[metric]
        self._scale: Tensor | None = None
        self._mean = torch.zeros(dim, dtype=torch.float32, device=device)
        dtype = torch.int8 if keys is not None else dtype
        self._keys = torch.empty(size, dim, dtype=dtype, device=device)
        total = torch.zeros(dim, dtype=torch.float64, device=device)
        low, high = torch.full_like(total, torch.inf), torch.full_like(total, -torch.inf)
        for part, batch in self._parts(batches):
            total += batch.sum(dim=0, dtype=torch.float64)
            if keys is None:
                self._keys[part] = batch.to(dtype)
            else:
                low, high = low.minimum(batch.amin(dim=0)), high.maximum(batch.amax(dim=0))
        mean = total / max(1, size) if self._comparison.centered else torch.zeros_like(total)
        self._mean = mean.float()
        if keys is not None:
            unit = self._comparison.unit_length
            wide = torch.ones_like(mean) if unit else torch.maximum(high - mean, mean - low)
            self._scale = (wide.clamp_min(1e-12) / 127).float()
            for part, batch in self._parts(batches):
                self._keys[part] = self._encoded(batch)
        step = max(1, _BLOCK // dim)
        blocks = range(0, max(1, size), step)
        norms = [self._norms_of(self._keys[first : first + step]) for first in blocks]
        present = [part for part in norms if part is not None]
        self._norms = torch.cat(present) if present else None

    def _parts(self, batches: Callable[[], Iterable[Array]]) -> Iterator[tuple[slice, Tensor]]:
        """Yields each batch on the device of the keys, and its place among them."""
        first = 0
        for batch in batches():
            if len(batch):
                part = slice(first, first + len(batch))
                yield part, torch.from_numpy(batch).to(self._keys.device)
            first += len(batch)

    def _encoded(self, keys: Tensor) -> Tensor:
        assert self._scale is not None
        keys = self._comparison.prepared(keys.float() - self._mean) / self._scale
        return keys.round_().clamp_(-127, 127).to(torch.int8)

    def _norms_of(self, keys: Tensor) -> Tensor | None:
        """The term of a score beside the product: |k - mean|^2, or |k| of keys kept whole."""
        if self._scale is not None:
            return self._comparison.norms(keys.float() * self._scale)
        centered = keys.float() - self._mean
        if self._comparison.unit_length:
            lengths: Tensor = torch.linalg.vector_norm(centered, dim=-1)
            return lengths
        return self._comparison.norms(centered)

    def _candidates(self, k: int) -> int:
        return min(self.size, _TIMES * k + _EXTRA)

    def _rows_at_once(self, k: int) -> int:
        return max(1, _BLOCK // self._candidates(k))

    def _search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        compared = self._comparison.prepared(queries - self._mean)
        if self._scale is not None:
            compared = compared * self._scale
        # The largest number of each row becomes 1, so that float16 holds all of them.
        factor = compared.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30)
        compared = compared / factor
        candidates = self._candidates(k)
        # Keys of one byte are converted block by block.
        width = len(queries) if self._scale is None else max(len(queries), self.dim)
        step = max(1, _BLOCK // width)
        found = queries.new_empty(len(queries), 0), queries.new_empty(len(queries), 0).long()
        for first in range(0, self.size, step):
            part = slice(first, first + step)
            norms = None if self._norms is None else self._norms[part]
            scores, ids = best(self._scores(compared, factor, self._keys[part], norms), candidates)
            if first:
                scores = torch.cat([found[0], scores], dim=-1)
                ids = torch.cat([found[1], ids + first], dim=-1)
                scores, order = best(scores, candidates)
                ids = ids.gather(1, order)
            found = scores, ids
        ids = found[1]
        rows = max(1, _BLOCK // (ids.shape[1] * self.dim))
        parts = zip(queries.split(rows), ids.split(rows), strict=True)
        distances = [self._comparison.pairwise(part, self._keys_in(near)) for part, near in parts]
        nearness, order = nearest_columns(torch.cat(distances), k, ids)
        ids = ids.gather(1, order)
        return nearness, ids if self._ids is None else self._ids[ids]

    def _scores(
        self, queries: Tensor, factor: Tensor, keys: Tensor, norms: Tensor | None
    ) -> Tensor:
        """Scores in the order of nearness, of queries divided by `factor`, float32 [rows, keys]."""
        scores = products(queries, keys)
        if norms is None:
            return scores
        if self._comparison.unit_length:
            return scores.div_(norms.clamp_min(1e-12))
        return torch.addcmul(norms.neg(), scores, 2.0 * factor, out=scores)

    def _keys_in(self, rows: Tensor) -> Tensor:
        """The keys in some rows, int64 [rows, k], float32 [rows, k, dim]."""
        if self._keys_of is None:
            return self._keys[rows].float()
        ids = rows if self._ids is None else self._ids[rows]
        unique, places = torch.unique(ids, return_inverse=True)
        keys = torch.from_numpy(self._keys_of(unique.cpu().numpy()))
        return keys.to(rows.device)[places].float()


def products(queries: Tensor, keys: Tensor) -> Tensor:
    """q k of each query, float32 [rows, dim], and each key, in the keys' precision on a GPU."""
    if keys.dtype == torch.int8:
        keys = keys.half()
    if keys.is_cuda and keys.dtype == torch.float16:
        return torch.mm(queries.half(), keys.T, out_dtype=torch.float32)
    with full_precision(keys.device):
        return queries @ keys.float().T


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest scores of each row, [rows, n], and their places, in the order of the places."""
    rows, size = scores.shape
    k, groups = min(k, size), size // _GROUP
    if groups <= 4 * k:
        places = nearest_columns(scores, k)[1].sort(dim=-1).values
        return scores.gather(1, places), places
    # The k largest numbers are in the k groups with the largest maxima, or after the last group.
    grouped = scores[:, : groups * _GROUP].view(rows, groups, _GROUP)
    chosen = nearest_columns(grouped.amax(dim=-1), k)[1].sort(dim=-1).values
    inside = torch.arange(_GROUP, device=scores.device)
    places = (chosen.unsqueeze(-1) * _GROUP + inside).flatten(1)
    rest = torch.arange(groups * _GROUP, size, device=scores.device).expand(rows, -1)
    places = torch.cat([places, rest], dim=-1)
    order = nearest_columns(scores.gather(1, places), k)[1].sort(dim=-1).values
    places = places.gather(1, order)
    return scores.gather(1, places), places
