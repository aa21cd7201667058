"""Computes the keys of passages once, and keeps them. It knows no text that they are needed for."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch

from knn_logits.engine.keys import KeySource
from knn_logits.index.exact import ExactIndex
from knn_logits.locks import new_lock
from knn_logits.search.on_demand.passages import Passages
from knn_logits.store.datastore import Datastore
from knn_logits.store.layout import CANARY_KEYS

# The most bytes of computed keys that are kept for a datastore, in float32.
_CACHED_BYTES = 1 << 30


class PassageKeys:
    """Computes the keys of passages, and keeps the latest. Safe for threads.

    The keys of each passage are an index of their own, ready to be joined with others.

    Attributes:
        computed: Number of passages whose keys were computed.
        read: Number of tokens that the model has read for them.
    """

    def __init__(
        self,
        store: Datastore,
        passages: Passages,
        source: KeySource,
        device: torch.device | str = "cpu",
        most_bytes: int = _CACHED_BYTES,
    ) -> None:
        manifest = store.manifest
        self._tokens = store.tokens
        self._dim, self._dtype, self._metric = manifest.dim, manifest.dtype, manifest.metric
        # Distances are computed relative to some key, as `ExactIndex` explains. It has to be the
        # same for all passages.
        canary = store.checks.get(CANARY_KEYS)
        center = np.zeros(self._dim) if canary is None else canary.mean(axis=0)
        self._center = torch.from_numpy(center.astype(np.float32))
        self._passages = passages
        self._source = source
        self._device = device
        self._most = most_bytes
        self._lock = new_lock(self)
        self._cached: OrderedDict[int, ExactIndex] = OrderedDict()
        self._bytes = 0
        self.computed = self.read = 0

    def of(self, passages: tuple[int, ...]) -> list[ExactIndex]:
        """Returns an index over the keys of each passage, in the precision of stored keys."""
        indexes: dict[int, ExactIndex] = {}
        with self._lock:
            for passage in passages:
                if passage in self._cached:
                    self._cached.move_to_end(passage)
                    indexes[passage] = self._cached[passage]
        new = [passage for passage in passages if passage not in indexes]
        if new:
            windows = [self._passages.window(passage) for passage in new]
            made = self._source.keys(self._tokens, windows, dim=self._dim, dtype=self._dtype)
            for passage, keys in zip(new, made, strict=True):
                vectors = torch.from_numpy(keys.astype(np.float32))
                indexes[passage] = ExactIndex(vectors, self._metric, self._device, self._center)
            with self._lock:
                self.computed += len(new)
                self.read += sum(window.size for window in windows)
                for passage in new:
                    self._keep(passage, indexes[passage])
        return [indexes[passage] for passage in passages]

    def _keep(self, passage: int, keys: ExactIndex) -> None:
        if passage in self._cached:
            return
        self._cached[passage] = keys
        self._bytes += keys.bytes
        while self._bytes > self._most and len(self._cached) > 1:
            _, oldest = self._cached.popitem(last=False)
            self._bytes -= oldest.bytes
