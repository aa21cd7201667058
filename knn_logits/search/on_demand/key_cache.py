"""Keys of passages, computed once. This module does not know the texts that need them."""

from __future__ import annotations

import numpy as np
import torch

from knn_logits.engine.keys import KeySource
from knn_logits.index.exact import ExactIndex
from knn_logits.locks import Recent, new_lock
from knn_logits.search.on_demand.passages import Passages
from knn_logits.store.datastore import Datastore
from knn_logits.store.layout import CANARY_KEYS

# The most bytes of computed keys that are kept for a datastore, in float32.
_CACHED_BYTES = 1 << 30


class PassageKeys:
    """Computes an index over the keys of each passage, and keeps the latest. Safe for threads."""

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
        self._lock = new_lock(self)
        self._cached: Recent[int, ExactIndex] = Recent(most_bytes, lambda keys: keys.bytes)
        self.computed = self.read = 0  # passages, and tokens that the model read for them

    def of(self, passages: tuple[int, ...]) -> list[ExactIndex]:
        """Returns an index over the keys of each passage, in the precision of stored keys."""
        indexes = self._cached.take(passages)
        new = [passage for passage in passages if passage not in indexes]
        if new:
            windows = [self._passages.window(passage) for passage in new]
            made = self._source.keys(self._tokens, windows, dim=self._dim, dtype=self._dtype)
            for passage, keys in zip(new, made, strict=True):
                vectors = torch.from_numpy(keys.astype(np.float32))
                indexes[passage] = ExactIndex(vectors, self._metric, self._device, self._center)
            self._cached.keep({passage: indexes[passage] for passage in new})
            with self._lock:
                self.computed += len(new)
                self.read += sum(window.size for window in windows)
        return [indexes[passage] for passage in passages]
