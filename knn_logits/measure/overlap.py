"""Finds the tokens of a text that a datastore also holds, in runs of 13 (Brown et al. 2020, C)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from knn_logits.arrays import Array
from knn_logits.printable import first_few
from knn_logits.store.datastore import Datastore

RUN = 13
# Tokens of a text that are collected before they are looked for. A token takes some 30 bytes.
_CACHED_TOKENS = 4 << 20
# Tokens of a datastore that are read at once.
_TOKENS_AT_ONCE = 1 << 18
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
# The size of a table of bits that sorts out most runs that are not in the text.
_TABLE_BITS = 24
_MAX_LISTED = 10
# Limits for the share of a text's tokens. Similar text that is not in the datastore has a share of
# 3% to 20% (docs/research/settings.md).
_NOTABLE_SHARE, _HELD_SHARE, _HELD_WHOLE_SHARE = 0.1, 0.5, 0.1
# A document counts as contained if this share of it is.
_WHOLE_SHARE = 0.9

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Overlap:
    """How much of a text the datastores hold."""

    tokens: int  # number of tokens of the text
    shared: int  # number of tokens in runs of 13 that a datastore also holds
    texts: tuple[int, ...]  # numbers of the text's documents that are shared to nine tenths or more
    in_texts: int  # number of tokens of these documents
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
        return self.share >= _NOTABLE_SHARE or bool(self.texts)

    @property
    def held(self) -> bool:
        """Whether the overlap is so large that settings must not be chosen on the text."""
        return self.share >= _HELD_SHARE or self.in_texts >= _HELD_WHOLE_SHARE * max(1, self.tokens)

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, for JSON."""
        content = asdict(self)
        content["documents"] = [{"id": id, "runs": runs} for id, runs in self.documents]
        return {"share": self.share, **content, "texts": list(self.texts)}

    def __str__(self) -> str:
        listed = first_few([id for id, _ in self.documents])
        whole = f", {len(self.texts):,} of its documents nearly whole" if self.texts else ""
        return (
            f"{self.share:.1%} of the text's tokens are in the datastore, in runs of {RUN} or more"
            f"{whole} ({listed})"
        )


class OverlapCheck:
    """Finds a text's tokens that datastores hold, which are read once for 4M tokens."""

    def __init__(self, stores: Sequence[Datastore], exclude: Collection[str] = ()) -> None:
        self._stores = stores
        self._exclude = exclude
        self._parts: list[tuple[int, Array]] = []
        self._waiting = self._tokens = self._shared = 0
        self._by_text: Counter[int] = Counter()
        self._shared_by_text: Counter[int] = Counter()
        self._documents: Counter[str] = Counter()

    def add(self, document: int, tokens: Array) -> None:
        """Takes more tokens of the text, int32."""
        self._parts.append((document, np.asarray(tokens, np.int32)))
        self._waiting += len(tokens)
        if self._waiting >= _CACHED_TOKENS:
            self._look()

    def result(self) -> Overlap:
        """Returns the overlap of all tokens that were given."""
        self._look()
        whole = {
            number: tokens
            for number, tokens in self._by_text.items()
            if self._shared_by_text[number] >= _WHOLE_SHARE * tokens
        }
        return Overlap(
            self._tokens,
            self._shared,
            tuple(sorted(whole)),
            sum(whole.values()),
            tuple(self._documents.most_common(_MAX_LISTED)),
        )

    def _look(self) -> None:
        if not self._parts:
            return
        numbers, parts = zip(*self._parts, strict=True)
        tokens = np.concatenate(parts)
        document = np.repeat(np.array(numbers), [len(part) for part in parts])
        self._parts, self._waiting = [], 0
        runs = _Runs(tokens, document)
        for store in self._stores:
            self._documents.update(runs.look_in(store, self._exclude))
        shared = runs.shared()
        self._tokens += len(tokens)
        self._shared += int(shared.sum())
        for counter, of in ((self._by_text, document), (self._shared_by_text, document[shared])):
            found, counts = np.unique(of, return_counts=True)
            counter.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))


class _Runs:
    """The runs of some tokens, by hash."""

    def __init__(self, tokens: Array, document: Array) -> None:
        self._tokens = tokens
        hashes = hashed(tokens)
        # A run must lie within one document.
        starts = np.flatnonzero(document[: len(hashes)] == document[len(document) - len(hashes) :])
        hashes = hashes[starts]
        self._hashes, self._place = np.unique(hashes, return_inverse=True)
        self._starts = starts
        self._hits = np.zeros(len(self._hashes), dtype=bool)
        self._table = np.zeros(1 << _TABLE_BITS, dtype=bool)
        self._table[_place(self._hashes)] = True

    def shared(self) -> Array:
        """Whether each token is in a run that was found, bool [tokens]."""
        starts = self._starts[self._hits[self._place]]
        steps = np.zeros(len(self._tokens) + 1, dtype=np.int64)
        np.add.at(steps, starts, 1)
        np.add.at(steps, starts + RUN, -1)
        return np.asarray(np.cumsum(steps[:-1]) > 0)

    def look_in(self, store: Datastore, exclude: Collection[str]) -> dict[str, int]:
        """How many runs each document of a datastore shares, by id."""
        if not len(self._hashes) or store.manifest.learned is not None:
            return {}
        table = store.documents
        away = set(store.manifest.removed)
        for document in exclude:
            away.update(table.named(document, store.manifest.removed))
        gone = np.array(sorted(away), np.int64)
        counts: dict[str, int] = {}
        for first in range(0, max(0, len(store.tokens) - RUN + 1), _TOKENS_AT_ONCE):
            tokens = np.asarray(store.tokens[first : first + _TOKENS_AT_ONCE + RUN - 1])
            at, places = self._same(tokens)
            owner = np.searchsorted(table.first, first + at, side="right") - 1
            # A run that crosses from one document to the next is in neither.
            inside = first + at + RUN <= table.first[owner] + table.length[owner]
            inside &= ~np.isin(owner, gone)
            self._hits[places[inside]] = True
            numbers, runs = np.unique(owner[inside], return_counts=True)
            for number, count in zip(numbers.tolist(), runs.tolist(), strict=True):
                id = table[number].id
                counts[id] = counts.get(id, 0) + count
        return counts

    def _same(self, tokens: Array) -> tuple[Array, Array]:
        """Finds the positions of the text's runs among some tokens, and which run each is."""
        hashes = hashed(tokens)
        at = np.flatnonzero(self._table[_place(hashes)])
        places = np.searchsorted(self._hashes, hashes[at])
        places[places == len(self._hashes)] = 0
        same = self._hashes[places] == hashes[at]
        return at[same], places[same]


def hashed(tokens: Array, run: int = RUN) -> Hashes:
    """Hashes each run of tokens by a polynomial modulo 2^64, uint64 [tokens - run + 1]."""
    runs = max(0, len(tokens) - run + 1)
    numbers = np.asarray(tokens).astype(np.uint64) + np.uint64(1)
    hashes = np.zeros(runs, dtype=np.uint64)
    for step in range(run):
        hashes *= _FACTOR
        hashes += numbers[step : step + runs]
    return hashes


def _place(hashes: Hashes) -> Hashes:
    """Positions in the table, from the bits that depend on all tokens of a run."""
    return np.asarray(hashes >> np.uint64(64 - _TABLE_BITS))
