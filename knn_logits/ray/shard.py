"""A range of a datastore's entries, opened on one machine. It knows of no other part."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError, DatastoreError
from knn_logits.index.base import Index
from knn_logits.index.exact import ExactIndex
from knn_logits.index.opening import hidden_entries, kind_of
from knn_logits.index.plain_arrays import from_arrays
from knn_logits.store.datastore import Datastore

# Distances and ids, [rows, k] each.
Neighborhood = tuple[Array, Array]
# The documents that are left out, and the lists that are visited; None keeps the index's number.
Form = tuple[tuple[str, ...], int | None]

_KEYS_AT_ONCE, _ROWS_AT_ONCE = 65_536, 1 << 20
# The most forms of a shard that an actor keeps open, as `Indexes` does for whole indexes.
_FORMS = 6


class Shard:
    """A range of a datastore's entries, opened on one machine."""

    def __init__(self, name: str, checksum: str, first: int, last: int, form: Form) -> None:
        store = Datastore.from_pretrained(name)
        if store.manifest.checksum != checksum:
            raise DatastoreError(
                f"{name} differs between machines of the cluster: use a folder shared by all "
                "machines, or copy it to all of them again"
            )
        self.first = first
        exclude, nprobe = form
        self.index = _open(store, first, last, nprobe)
        hidden = _inside(hidden_entries(store, store.entries_of(exclude)), first, last)
        if len(hidden):
            self.index.remove(hidden)

    def search(self, queries: Array, k: int) -> Neighborhood:
        """Finds the nearest entries of the shard; the ids are those of the whole datastore."""
        nearness, ids = self.index.search(torch.from_numpy(np.array(queries)), k)
        local = ids.numpy()
        return nearness.numpy(), np.where(local < 0, local, local + self.first)


def _inside(entries: Array, first: int, last: int) -> Array:
    """Those of some entries that a range holds, numbered from its first one."""
    inside: Array = entries[(entries >= first) & (entries < last)] - first
    return inside


def _open(store: Datastore, first: int, last: int, nprobe: int | None) -> Index:
    """Opens the part of an index that holds a range of entries."""
    kind = kind_of(store)
    if not kind.approximate:
        keys = store.key_batches(_KEYS_AT_ONCE, first, last)
        return ExactIndex.from_batches(keys, last - first, kind.dim, kind.metric)
    return from_arrays(
        part_of_index(store, first, last),
        kind,
        last - first,
        nprobe=nprobe or store.manifest.index.nprobe,
    )


def part_of_index(store: Datastore, first: int, last: int) -> dict[str, Array]:
    """Reads the same lists with a range of the entries, numbered from 0."""
    arrays = store.index_arrays()
    if arrays is None:
        raise DatastoreError(
            f"the index {store.manifest.index.factory} of {store.folder} is not stored as plain "
            "arrays, so it cannot be sharded: build another with `knn-logits index`"
        )
    if "sizes" in arrays:
        return arrays | cut_lists(arrays, first, last)
    width = len(arrays["codes"]) // max(1, len(store))
    return arrays | {"codes": arrays["codes"][first * width : last * width]}


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


class ShardActor:
    """The actor of a shard. A form is opened by the first call: a constructor's error is lost."""

    def __init__(self, name: str, checksum: str, first: int, last: int) -> None:
        self._shard = name, checksum, first, last
        self._opened = lru_cache(_FORMS)(self._open)

    def _open(self, form: Form) -> Shard:
        try:
            return Shard(*self._shard, form)
        except DatastoreError as error:
            raise type(error)(f"on the machine {platform.node()}: {error}") from error

    def ready(self, form: Form) -> bool:
        self._opened(form)
        return True

    def call(self, form: Form, method: str, *arguments: Any) -> Any:
        return getattr(self._opened(form), method)(*arguments)
