"""Which of a text's tokens a datastore holds in runs of 13: what is measured on them is recall.

Knows tokens and the tables of documents; no model. The tokens of a text are hashed in runs, sorted,
and the datastore's tokens stream by once; what has the hash of a run is compared token by token.

Runs of 13 are what Brown et al. (2020), "Language Models are Few-Shot Learners", appendix C, take
for a sign that a text was in the training data.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from knn_logits.arrays import Array
from knn_logits.datastore.store import Datastore

RUN = 13
# Tokens of a text kept until they are looked for: some 30 bytes each while they are.
_KEPT = 4 << 20
# Tokens of a datastore at once.
_AT_ONCE = 1 << 18
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
# A table of bits that most runs which are not in the text are told by.
_TABLE_BITS = 24
_NAMED = 10
# Shares of a text's tokens. Of like text that is not in the datastore, 3% to 20% are: see LOG.md.
_NOTABLE, _HELD, _HELD_WHOLE = 0.1, 0.5, 0.1
# Of a document, so much counts as the whole.
_WHOLE = 0.9

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Overlap:
    """How much of a text datastores hold.

    Attributes:
        tokens: Tokens of the text.
        shared: Those within a run of 13 that a datastore holds as well.
        texts: Documents of the text, by number, of which nine tenths or more are shared.
        in_texts: Tokens of these.
        documents: The documents of the datastores that hold the runs, those with most of them
            first, ten at most: (id, runs).
    """

    tokens: int
    shared: int
    texts: tuple[int, ...]
    in_texts: int
    documents: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float:
        """Of the text's tokens, those that are shared."""
        return self.shared / max(1, self.tokens)

    @property
    def notable(self) -> bool:
        """Whether it should be known where numbers are measured on the text."""
        return self.share >= _NOTABLE or bool(self.texts)

    @property
    def held(self) -> bool:
        """Whether the text is the datastore's own, so that nothing can be chosen on it."""
        return self.share >= _HELD or self.in_texts >= _HELD_WHOLE * max(1, self.tokens)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON."""
        content = asdict(self)
        content["documents"] = [{"id": id, "runs": runs} for id, runs in self.documents]
        return {"share": self.share, **content, "texts": list(self.texts)}

    def __str__(self) -> str:
        named = ", ".join(id for id, _ in self.documents[:3])
        more = ", ..." if len(self.documents) > 3 else ""
        whole = f", {len(self.texts):,} of its documents whole" if self.texts else ""
        return (
            f"{self.share:.1%} of the text's tokens are in the datastore, in runs of {RUN} or more"
            f"{whole} ({named}{more})"
        )


class OverlapCheck:
    """Is given a text's tokens as they are read, and finds those that datastores hold.

    Memory does not grow with the text, nor with the datastores: they are read once for each four
    million tokens of the text.

    Args:
        stores: The datastores.
        exclude: Ids of documents that take no part.
    """

    def __init__(self, stores: Sequence[Datastore], exclude: Collection[str] = ()) -> None:
        self._stores = stores
        self._exclude = exclude
        self._parts: list[Array] = []
        self._numbers: list[int] = []
        self._waiting = 0
        self._tokens = self._shared = 0
        self._by_text: dict[int, list[int]] = {}
        self._documents: dict[str, int] = {}

    def add(self, document: int, tokens: Array) -> None:
        """Takes tokens of the text.

        Args:
            document: Number of the document that they go on with.
            tokens: int32 [tokens].
        """
        for first in range(0, len(tokens), _KEPT):
            part = np.asarray(tokens[first : first + _KEPT], np.int32)
            self._parts.append(part)
            self._numbers.append(document)
            self._waiting += len(part)
            if self._waiting >= _KEPT:
                self._look()

    def result(self) -> Overlap:
        """What was found in all tokens given."""
        self._look()
        whole = {
            number: all for number, (all, found) in self._by_text.items() if found >= _WHOLE * all
        }
        most = sorted(self._documents.items(), key=lambda one: -one[1])[:_NAMED]
        return Overlap(
            self._tokens, self._shared, tuple(sorted(whole)), sum(whole.values()), tuple(most)
        )

    def _look(self) -> None:
        if not self._parts:
            return
        tokens = np.concatenate(self._parts)
        sizes = [len(part) for part in self._parts]
        document = np.repeat(np.array(self._numbers), sizes)
        self._parts, self._numbers, self._waiting = [], [], 0
        runs = _Runs(tokens, document)
        for store in self._stores:
            for id, count in runs.look_in(store, self._exclude).items():
                self._documents[id] = self._documents.get(id, 0) + count
        shared = runs.shared()
        self._tokens += len(tokens)
        self._shared += int(shared.sum())
        numbers, place = np.unique(document, return_inverse=True)
        counts = np.bincount(place), np.bincount(place, shared).astype(np.int64)
        for number, all, found in zip(numbers.tolist(), *(c.tolist() for c in counts), strict=True):
            before = self._by_text.setdefault(number, [0, 0])
            before[0] += all
            before[1] += found


class _Runs:
    """The runs of some tokens, by hash."""

    def __init__(self, tokens: Array, document: Array) -> None:
        self._tokens = tokens
        hashes = hashed(tokens)
        # A run within one document.
        starts = np.flatnonzero(document[: len(hashes)] == document[len(document) - len(hashes) :])
        hashes = hashes[starts]
        self._known, first, self._place = np.unique(hashes, return_index=True, return_inverse=True)
        self._starts = starts
        self._first = starts[first]
        self._found = np.zeros(len(self._known), dtype=bool)
        self._table = np.zeros(1 << _TABLE_BITS, dtype=bool)
        self._table[_place(self._known)] = True

    def shared(self) -> Array:
        """bool [tokens], whether each is in a run that was found."""
        starts = self._starts[self._found[self._place]]
        steps = np.zeros(len(self._tokens) + 1, dtype=np.int64)
        np.add.at(steps, starts, 1)
        np.add.at(steps, starts + RUN, -1)
        return np.asarray(np.cumsum(steps[:-1]) > 0)

    def look_in(self, store: Datastore, exclude: Collection[str]) -> dict[str, int]:
        """How many runs each document of a datastore shares, by id."""
        if not len(self._known):
            return {}
        table = store.documents
        away = set(store.manifest.removed)
        for id in exclude:
            away.update(table.numbers_of(id))
        gone = np.array(sorted(away), np.int64)
        counts: dict[str, int] = {}
        for first in range(0, max(0, len(store.tokens) - RUN + 1), _AT_ONCE):
            tokens = np.asarray(store.tokens[first : first + _AT_ONCE + RUN - 1])
            at, places = self._same(tokens)
            owner = np.searchsorted(table.first, first + at, side="right") - 1
            # A run across the edge of two documents is in neither.
            inside = first + at + RUN <= table.first[owner] + table.length[owner]
            inside &= ~np.isin(owner, gone)
            self._found[places[inside]] = True
            numbers, runs = np.unique(owner[inside], return_counts=True)
            for number, count in zip(numbers.tolist(), runs.tolist(), strict=True):
                id = table[number].id
                counts[id] = counts.get(id, 0) + count
        return counts

    def _same(self, tokens: Array) -> tuple[Array, Array]:
        """Where runs of the text stand among some tokens, and which each is."""
        hashes = hashed(tokens)
        at = np.flatnonzero(self._table[_place(hashes)])
        places = np.searchsorted(self._known, hashes[at])
        places[places == len(self._known)] = 0
        same = self._known[places] == hashes[at]
        at, places = at[same], places[same]
        steps = np.arange(RUN)
        theirs = tokens[at[:, None] + steps]
        ours = self._tokens[self._first[places][:, None] + steps]
        equal = (theirs == ours).all(axis=1)
        return at[equal], places[equal]


def hashed(tokens: Array) -> Hashes:
    """The hash of each run of 13: a polynomial modulo 2^64.

    Args:
        tokens: int32 [tokens].

    Returns:
        uint64 [tokens - 12], or none where there are fewer.
    """
    runs = max(0, len(tokens) - RUN + 1)
    numbers = tokens.astype(np.uint64) + np.uint64(1)
    found = np.zeros(runs, dtype=np.uint64)
    for step in range(RUN):
        found *= _FACTOR
        found += numbers[step : step + runs]
    return found


def _place(hashes: Hashes) -> Hashes:
    """Places in the table, from the bits that all tokens of a run reach."""
    return np.asarray(hashes >> np.uint64(64 - _TABLE_BITS))
