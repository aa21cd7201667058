"""The first stage of a search: passages that share ends with the text so far, weighed as by BM25.

They follow from the text alone. So a text gets the same neighbors whether it is scored at once or
written token by token, alone or in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from knn_logits.arrays import Array
from knn_logits.locks import Recent
from knn_logits.search.infini_gram import SuffixIndex
from knn_logits.search.occurrences import Prefixes
from knn_logits.search.on_demand.passages import Passages
from knn_logits.store.records import OnDemandRecord

# An end that occurs more often than this says little, and gives no points.
_MOST_OCCURRENCES = 2048
# An end is compared over at most so many tokens.
_LONGEST_END = 64
# The latest results that are kept.
_CACHED = 8192


class PassageFinder:
    """Finds the passages of a datastore that matter for texts. Safe for threads."""

    def __init__(self, suffixes: SuffixIndex, passages: Passages, settings: OnDemandRecord) -> None:
        self._suffixes = suffixes
        self._passages = passages
        self._settings = settings
        self._results_of: Recent[bytes, tuple[int, ...]] = Recent(_CACHED)

    def find(self, texts: Prefixes) -> list[tuple[int, ...]]:
        """Finds passages at every `every`-th token of each text; the last `kept` results count."""
        settings = self._settings
        first = _beginnings(texts)
        steps = (texts.end - first) // settings.every
        keys = list(zip(first.tolist(), steps.tolist(), strict=True))
        queries: dict[tuple[int, int], bytes] = {}
        for begin, step in dict.fromkeys(keys):
            for earlier in range(max(1, step - settings.kept + 1), step + 1):
                end = begin + earlier * settings.every
                start = max(begin, end - settings.ends - _LONGEST_END)
                queries[begin, earlier] = texts.tokens[start:end].astype(np.int64).tobytes()
        results = self._results(dict.fromkeys(queries.values()))
        unions: dict[tuple[int, int], tuple[int, ...]] = {}
        for begin, step in dict.fromkeys(keys):
            latest = range(max(1, step - settings.kept + 1), step + 1)
            union = {passage for earlier in latest for passage in results[queries[begin, earlier]]}
            unions[begin, step] = tuple(sorted(union))
        return [unions[key] for key in keys]

    def _results(self, queries: dict[bytes, None]) -> dict[bytes, tuple[int, ...]]:
        """Returns the passages that each end of a text finds."""
        passages_of = self._results_of.take(queries)
        new = [query for query in queries if query not in passages_of]
        if new:
            results = self._searched([np.frombuffer(query, np.int64) for query in new])
            searched = dict(zip(new, results, strict=True))
            self._results_of.keep(searched)
            passages_of |= searched
        return passages_of

    def _searched(self, ends: Sequence[Array]) -> list[tuple[int, ...]]:
        """Looks all places of some ends up at once."""
        lengths = np.array([len(end) for end in ends], np.int64)
        first = np.cumsum(lengths) - lengths
        places = np.minimum(lengths, self._settings.ends)
        row = np.repeat(np.arange(len(ends)), places)
        back = np.concatenate([np.arange(count) for count in places.tolist()])
        last = (first + lengths)[row] - back
        low, high, matched = self._suffixes.ranges(
            Prefixes(np.concatenate(ends), np.maximum(first[row], last - _LONGEST_END), last)
        )
        bounds = np.concatenate([[0], np.cumsum(places)])
        return [
            self._best(low[a:b], high[a:b], matched[a:b])
            for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        ]

    def _best(self, low: Array, high: Array, matched: Array) -> tuple[int, ...]:
        """Returns the passages with the most points, given the ranges of a text's last places."""
        counts = high - low
        numbers, points = [], []
        for place in np.flatnonzero((matched > 0) & (counts <= _MOST_OCCURRENCES)).tolist():
            entries = self._suffixes.entries(int(low[place]), int(high[place]))
            passages = np.unique(self._passages.of_entries(entries))
            numbers.append(passages)
            points.append(np.full(len(passages), np.log1p(len(self._passages) / len(passages))))
        if not numbers:
            return ()
        numbers_of, which = np.unique(np.concatenate(numbers), return_inverse=True)
        total = np.bincount(which, np.concatenate(points))
        # Among equals the earlier passage comes first.
        best = np.argsort(-np.round(total, 9), kind="stable")[: self._settings.found]
        return tuple(numbers_of[best].tolist())


def _beginnings(texts: Prefixes) -> Array:
    """Returns where each text begins, behind its last number that is no token, int64 [texts]."""
    behind = np.where(texts.tokens < 0, np.arange(1, len(texts.tokens) + 1), 0)
    behind = np.maximum.accumulate(np.concatenate([[0], behind]))
    first: Array = np.maximum(texts.first, behind[texts.end])
    return first
