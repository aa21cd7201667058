"""Finds the tokens of a text that a datastore also holds, in runs of 13 (Brown et al. 2020, C)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from knn_logits.arrays import Array, Bools
from knn_logits.store.datastore import Datastore

RUN_TOKENS = 13
# Tokens of a datastore that are read at once.
_TOKENS_AT_ONCE = 1 << 18
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
# A number that is no token. It is between the documents of a text.
_GAP = -1
# The share of a text's tokens from which on it counts as held. Similar text that is not in the
# datastore has 3% to 21% (docs/research/settings.md).
HELD_SHARE = 0.3


class OverlapCheck:
    """Collects the tokens of a text, and finds those that datastores hold."""

    def __init__(self, stores: Sequence[Datastore], exclude: Collection[str] = ()) -> None:
        self._stores = stores
        self._exclude = exclude
        self._parts: list[Array] = []
        self._last: int | None = None

    def add(self, document: int, tokens: Array) -> None:
        """Takes more tokens, int32, of a document."""
        if document != self._last:
            self._parts.append(np.array([_GAP], np.int32))
            self._last = document
        self._parts.append(np.asarray(tokens, np.int32))

    def share(self) -> float:
        """The share of all tokens that stand in a run which a datastore also holds."""
        tokens = np.concatenate([np.zeros(0, np.int32), *self._parts])
        wanted, run_of_place = np.unique(_hashed(tokens), return_inverse=True)
        hits = np.zeros(len(wanted), dtype=bool)
        for store in self._stores if len(wanted) else ():
            hits |= _held(store, wanted, self._exclude)
        starts = hits[run_of_place]
        shared = np.zeros(len(tokens), dtype=bool)
        for step in range(RUN_TOKENS):
            shared[step : step + len(starts)] |= starts
        return float(shared.sum()) / max(1, int((tokens != _GAP).sum()))


def overlap_words(share: float) -> str:
    """Says how much of a text a datastore holds."""
    return f"{share:.1%} of the text's tokens are in the datastore, in runs of {RUN_TOKENS} or more"


def _held(store: Datastore, wanted: Array, exclude: Collection[str]) -> Bools:
    """Whether a datastore holds each of the wanted runs."""
    held = np.zeros(len(wanted), dtype=bool)
    if store.manifest.learned is not None:
        return held
    table, removed = store.documents, set(store.manifest.removed)
    gone = removed.union(*(table.named(name, removed) for name in exclude))
    ends = table.first + table.length
    ends[list(gone)] = 0
    for first in range(0, len(store.tokens), _TOKENS_AT_ONCE):
        part = np.asarray(store.tokens[first : first + _TOKENS_AT_ONCE + RUN_TOKENS - 1])
        hashes = _hashed(part)
        runs = np.searchsorted(wanted, hashes).clip(max=len(wanted) - 1)
        at = np.flatnonzero(wanted[runs] == hashes)
        # A run that crosses from one document to the next is in neither.
        limits = ends[np.searchsorted(table.first, first + at, side="right") - 1]
        held[runs[at[first + at + RUN_TOKENS <= limits]]] = True
    return held


def _hashed(tokens: Array) -> Array:
    """Hashes each run of tokens by a polynomial modulo 2^64, uint64 [tokens - 12]."""
    runs = max(0, len(tokens) - RUN_TOKENS + 1)
    numbers = np.asarray(tokens).astype(np.uint64)
    hashes: Array = np.zeros(runs, np.uint64)
    for step in range(RUN_TOKENS):
        hashes = hashes * _FACTOR + numbers[step : step + runs]
    return hashes
