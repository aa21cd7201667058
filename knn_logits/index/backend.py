"""The protocol of a backend: a kind of index, named by a factory string, before it holds keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from knn_logits.arrays import Array
from knn_logits.errors import DatastoreError
from knn_logits.index.base import Index
from knn_logits.metrics import Metric
from knn_logits.settings.config import IndexConfig


@dataclass(frozen=True)
class Keys:
    """The keys that an index is made of: in order, float32 [rows, dim] each, and drawn."""

    size: int
    batches: Callable[[], Iterable[Array]]
    sample: Callable[[int], Array]  # a number of them, to train on


class Backend:
    """A kind of index over keys of `dim` numbers; by default one that is made of all keys anew."""

    approximate = True  # it misses neighbors: recall is measured, results compared with a probe
    extends = False  # its index has `add`, so that new keys need no new index

    def __init__(self, factory: str, dim: int, metric: Metric) -> None:
        self.factory, self.dim, self.metric = factory, dim, metric

    @staticmethod
    def takes(factory: str) -> bool:
        """Whether a factory string names an index of this backend."""
        raise NotImplementedError

    def check(self, keys: int | None) -> None:
        """Refuses an index that cannot learn from a number of keys; None if it is not known yet."""

    def check_cost(self, entries: int, train_size: int | None) -> None:
        """`ValueError` for an index that takes too much memory or time to be made of keys."""

    @property
    def has_arrays(self) -> bool:
        """Whether the index can be stored as plain arrays."""
        return False

    def threads(self, threads: int | None) -> int | None:
        """The number of threads to build with."""
        return threads

    def build(
        self, keys: Keys, config: IndexConfig, threads: int | None, device: torch.device | str
    ) -> Index:
        """Makes the index of keys, with `train_size` and `nprobe` of the settings."""
        raise NotImplementedError

    def to_arrays(self, index: Any) -> dict[str, Array] | None:
        """The index as plain arrays to store; None where it is made of the keys."""
        return None

    def from_arrays(
        self,
        arrays: Mapping[str, Array],
        size: int,
        *,
        retained: Array | None = None,
        nprobe: int | None = None,
        threads: int | None = None,
    ) -> Index:
        """Makes the index over `size` keys of the result of `to_arrays`, as `plain` explains."""
        raise DatastoreError(f"an index {self.factory!r} is not stored as arrays")

    def runs_on(self, device: torch.device) -> bool:
        """Whether `build` puts the index on this device."""
        return device.type == "cpu"

    def moved(self, index: Any, device: torch.device) -> Any:
        """The index on a GPU, or the same where there is no form of it."""
        return index

    def file_bytes(self, entries: int) -> int:
        """Size of the index's file; 0 for an index without one."""
        return 0
