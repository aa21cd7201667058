"""A part of an index, opened on one machine. Nothing here knows of the other parts."""

from __future__ import annotations

import platform
from collections import OrderedDict

import numpy as np
import torch

from knn_logits.arrays import Array
from knn_logits.errors import DatastoreError
from knn_logits.index.base import Index
from knn_logits.index.exact import ExactIndex
from knn_logits.index.opening import hidden_entries, present_entries
from knn_logits.ray.merging import Found
from knn_logits.ray.parts import part_of_index
from knn_logits.settings.config import Metric
from knn_logits.store.datastore import Datastore

_KEYS_AT_ONCE = 65_536
# The most forms of a shard that an actor keeps open, as `Indexes` does for whole indexes.
_KEPT = 6

# The documents that are left out, and the lists that are visited.
Form = tuple[tuple[str, ...], int | None]


class Shard:
    """A range of a datastore's entries, opened on one machine.

    Args:
        name: The datastore's folder, or its name on the Hub.
        checksum: The checksum of its manifest.
        first: The first entry.
        last: The entry after the last one.
        without: Ids of documents that are left out.
        nprobe: Inverted lists visited for each query; None keeps the index's number.
    """

    def __init__(
        self,
        name: str,
        checksum: str,
        first: int,
        last: int,
        without: tuple[str, ...],
        nprobe: int | None,
    ) -> None:
        self.store = Datastore.from_pretrained(name)
        if self.store.manifest.checksum != checksum:
            raise DatastoreError(
                f"{name} is another datastore on another machine of the cluster: give a folder "
                "that all machines share, or copy it to all of them again"
            )
        self.first = first
        self.index = _opened(self.store, first, last, nprobe)
        hidden = hidden_entries(self.store, self.store.entries_of(without))
        hidden = hidden[(hidden >= first) & (hidden < last)] - first
        if len(hidden):
            self.index.remove(hidden)

    def search(self, queries: Array, k: int) -> Found:
        """Finds the nearest entries of the shard; the ids are those of the whole datastore."""
        distances, ids = self.index.search(torch.from_numpy(np.array(queries)), k)
        found = ids.numpy()
        return distances.numpy(), np.where(found < 0, found, found + self.first)

    def reconstruct(self, ids: Array) -> Array:
        """Returns the vectors of some entries of the shard, float32 [rows, dim]."""
        found: Array = self.index.reconstruct(ids - self.first).numpy()
        return found


def _opened(store: Datastore, first: int, last: int, nprobe: int | None) -> Index:
    """Opens the part of an index that holds a range of entries."""
    record, dim = store.manifest.index, store.manifest.dim
    metric: Metric = store.manifest.metric
    if record.factory == "exact":
        parts, left = [], last - first
        for batch in store.key_batches(_KEYS_AT_ONCE, first):
            parts.append(batch[:left])
            left -= len(parts[-1])
            if not left:
                break
        exact = ExactIndex.from_batches(parts, last - first, dim, metric)
        away = store.merged_away
        away = away[(away >= first) & (away < last)] - first
        if len(away):
            exact.remove(away)
        return exact
    from knn_logits.index import plain

    there = present_entries(store)
    if there is not None:
        there = there[(there >= first) & (there < last)] - first
    return plain.from_arrays(
        part_of_index(store, first, last),
        record.factory,
        dim,
        metric,
        last - first,
        there=there,
        nprobe=nprobe or record.nprobe,
    )


class ShardActor:
    """The actor of a shard. Each of its methods names the form of the shard that it asks.

    An actor whose constructor fails is dead, and its error is lost. So a form is opened by the
    first call, which passes the error on.

    Args:
        name: The datastore's folder, or its name on the Hub.
        checksum: The checksum of its manifest.
        first: The first entry.
        last: The entry after the last one.
    """

    def __init__(self, name: str, checksum: str, first: int, last: int) -> None:
        self._given = name, checksum, first, last
        self._open: OrderedDict[Form, Shard] = OrderedDict()

    def _opened(self, form: Form) -> Shard:
        if form not in self._open:
            try:
                self._open[form] = Shard(*self._given, *form)
            except DatastoreError as error:
                raise type(error)(f"on the machine {platform.node()}: {error}") from error
            if len(self._open) > _KEPT:
                self._open.popitem(last=False)
        self._open.move_to_end(form)
        return self._open[form]

    def ready(self, form: Form) -> bool:
        """Opens the shard."""
        self._opened(form)
        return True

    def search(self, form: Form, queries: Array, k: int) -> Found:
        """See `Shard.search`."""
        return self._opened(form).search(queries, k)

    def reconstruct(self, form: Form, ids: Array) -> Array:
        """See `Shard.reconstruct`."""
        return self._opened(form).reconstruct(ids)
