"""Finds the tokens of a text that a datastore also holds, in runs of 13 (Brown et al. 2020, C)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from knn_logits.arrays import Array
from knn_logits.printable import first_few
from knn_logits.store.datastore import Datastore

RUN = 13
# Tokens of a datastore that are read at once.
_TOKENS_AT_ONCE = 1 << 18
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
# A number that is no token. It is between the documents of a text.
_GAP = -1
_MAX_LISTED = 10
# Limits for the share of a text's tokens. Similar text that is not in the datastore has a share of
# 3% to 20% (docs/research/settings.md).
_NOTABLE_SHARE, _HELD_SHARE = 0.1, 0.3

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Overlap:
    """How much of a text the datastores hold."""

    tokens: int  # number of tokens of the text
    shared: int  # number of tokens in runs of 13 that a datastore also holds
    # The documents of the datastores that hold most of the runs, at most ten, each as (id, number
    # of runs).
    documents: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float:
        """The share of the text's tokens that the datastores also hold."""
        return self.shared / max(1, self.tokens)

    @property
    def notable(self) -> bool:
        """Whether the overlap is large enough to be reported with measures of the text."""
        return self.share >= _NOTABLE_SHARE

    @property
    def held(self) -> bool:
        """Whether the overlap is so large that settings must not be chosen on the text."""
        return self.share >= _HELD_SHARE

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, for JSON."""
        documents = [{"id": id, "runs": runs} for id, runs in self.documents]
        return {"share": self.share, **asdict(self), "documents": documents}

    def __str__(self) -> str:
        listed = first_few([id for id, _ in self.documents])
        return (
            f"{self.share:.1%} of the text's tokens are in the datastore, in runs of {RUN} or more "
            f"({listed})"
        )


class OverlapCheck:
    """Collects the tokens of texts, and finds those that datastores hold."""

    def __init__(self, stores: Sequence[Datastore], exclude: Collection[str] = ()) -> None:
        self._stores = stores
        self._exclude = exclude
        self._parts: list[Array] = []
        self._last: tuple[str, int] | None = None

    def add(self, text: str, document: int, tokens: Array) -> None:
        """Takes more tokens, int32, of a text's document."""
        if (text, document) != self._last:
            self._parts.append(np.array([_GAP], np.int32))
            self._last = (text, document)
        self._parts.append(np.asarray(tokens, np.int32))

    def result(self) -> Overlap:
        """Returns the overlap of all tokens that were given."""
        tokens = np.concatenate([np.zeros(0, np.int32), *self._parts])
        wanted, run_of_place = np.unique(hashed(tokens), return_inverse=True)
        hits = np.zeros(len(wanted), dtype=bool)
        documents: Counter[str] = Counter()
        for store in self._stores if len(wanted) else ():
            for id, runs in _found(store, wanted, self._exclude):
                documents[id] += len(runs)
                hits[runs] = True
        starts = hits[run_of_place]
        shared = np.zeros(len(tokens), dtype=bool)
        for step in range(RUN):
            shared[step : step + len(starts)] |= starts
        size = int((tokens != _GAP).sum())
        return Overlap(size, int(shared.sum()), tuple(documents.most_common(_MAX_LISTED)))


def _found(
    store: Datastore, wanted: Hashes, exclude: Collection[str]
) -> Iterator[tuple[str, Array]]:
    """Yields a document's id and the indices of the wanted runs in it, part by part."""
    if store.manifest.learned is not None:
        return
    table = store.documents
    away = set(store.manifest.removed)
    for name in exclude:
        away.update(table.named(name, store.manifest.removed))
    gone = np.array(sorted(away), np.int64)
    for first in range(0, max(0, len(store.tokens) - RUN + 1), _TOKENS_AT_ONCE):
        hashes = hashed(np.asarray(store.tokens[first : first + _TOKENS_AT_ONCE + RUN - 1]))
        places = np.searchsorted(wanted, hashes).clip(max=len(wanted) - 1)
        at = np.flatnonzero(wanted[places] == hashes)
        owner = np.searchsorted(table.first, first + at, side="right") - 1
        # A run that crosses from one document to the next is in neither.
        inside = first + at + RUN <= table.first[owner] + table.length[owner]
        inside &= ~np.isin(owner, gone)
        at, owner = at[inside], owner[inside]
        for number in np.unique(owner).tolist():
            yield table[number].id, places[at[owner == number]]


def hashed(tokens: Array, run: int = RUN) -> Hashes:
    """Hashes each run of tokens by a polynomial modulo 2^64, uint64 [tokens - run + 1]."""
    runs = max(0, len(tokens) - run + 1)
    numbers = np.asarray(tokens).astype(np.uint64) + np.uint64(1)
    hashes = np.zeros(runs, dtype=np.uint64)
    for step in range(run):
        hashes *= _FACTOR
        hashes += numbers[step : step + runs]
    return hashes
