"""A range of a datastore's entries on one machine of the cluster. It knows of no other part."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError, DatastoreError
from knn_logits.index.base import Index
from knn_logits.index.exact import ExactIndex
from knn_logits.index.opening import kind_of
from knn_logits.index.plain_arrays import from_arrays
from knn_logits.store.datastore import Datastore

# Distances and ids, [rows, k] each.
Neighborhood = tuple[Array, Array]

_ROWS_AT_ONCE = 1 << 20


class Shard:
    """A range of a datastore's entries. The first call opens it: a constructor's error is lost."""

    def __init__(self, name: str, checksum: str, first: int, last: int) -> None:
        self._name, self._checksum = name, checksum
        self._first, self._last = first, last

    def ready(self) -> bool:
        """Opens the shard, if it is not open."""
        try:
            return self._index.size > 0
        except DatastoreError as error:
            raise type(error)(f"on the machine {platform.node()}: {error}") from error

    def search(self, queries: Array, k: int, nprobe: int | None) -> Neighborhood:
        """Finds the nearest entries of the shard; the ids are those of the whole datastore."""
        self._index.nprobe = nprobe
        nearness, ids = self._index.search(torch.from_numpy(np.array(queries)), k)
        local = ids.numpy()
        return nearness.numpy(), np.where(local < 0, local, local + self._first)

    @cached_property
    def _index(self) -> Index:
        store = Datastore.from_pretrained(self._name)
        if store.manifest.checksum != self._checksum:
            raise DatastoreError(
                f"{self._name} differs between machines of the cluster: use a folder shared by all "
                "machines, or copy it to all of them again"
            )
        kind, first, last = kind_of(store), self._first, self._last
        arrays = store.index_arrays
        if arrays is None:
            keys = store.key_batches(first, last)
            index: Index = ExactIndex.from_batches(keys, last - first, kind.dim, kind.metric)
        else:
            part = {**arrays, **cut_lists(arrays, first, last)}
            index = from_arrays(part, kind, last - first)
        removed = store.removed_entries
        inside = removed[(removed >= first) & (removed < last)] - first
        if len(inside):
            index.remove(inside)
        return index


def cut_lists(arrays: Mapping[str, Array], first: int, last: int) -> dict[str, Array]:
    """Selects a range of entries from inverted lists, and numbers them from 0."""
    ends = np.cumsum(arrays["sizes"])
    sizes = np.zeros(len(ends), np.int64)
    ids: list[Array] = []
    codes: list[Array] = []
    for start in range(0, min(len(arrays["ids"]), len(arrays["codes"])), _ROWS_AT_ONCE):
        block = slice(start, start + _ROWS_AT_ONCE)
        entries = arrays["ids"][block]
        inside = (entries >= first) & (entries < last)
        rows = start + np.flatnonzero(inside)
        if len(rows) and (not len(ends) or rows[-1] >= ends[-1]):
            raise DamagedError("the index's lists are shorter than its ids: rebuild the index")
        sizes += np.bincount(np.searchsorted(ends, rows, "right"), minlength=len(ends))
        ids.append(entries[inside] - first)
        codes.append(arrays["codes"][block][inside])
    return {"sizes": sizes, "ids": np.concatenate(ids), "codes": np.concatenate(codes)}
