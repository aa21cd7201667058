"""Keys on demand: a model computes keys of passages where they are needed, as in SK-MT and NEST."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.windows import KeySource, TextWindow
from knn_logits.errors import ConfigError, DatastoreError
from knn_logits.index.exact import ExactIndex
from knn_logits.index.opening import Indexes, hidden_entries
from knn_logits.locks import Recent
from knn_logits.search.matches import SuffixIndex
from knn_logits.search.neighbors import Neighbors, Prefixes
from knn_logits.search.retriever import Retriever
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import Contexts
from knn_logits.store.layout import CANARY_KEYS
from knn_logits.store.records import OnDemandRecord


class Passages:
    """The passages of a text: entries in a row, none of which crosses a context's edge."""

    def __init__(self, contexts: Contexts, size: int, before: int) -> None:
        self._size, self._before = size, before
        self._first_token, self._first_entry = contexts.first, contexts.first_entry
        self._entries = contexts.length - 1
        counts = -(-self._entries // size)
        self._first = np.concatenate([[0], np.cumsum(counts)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def of_entries(self, entries: Array) -> Array:
        context = np.searchsorted(self._first_entry, entries, side="right") - 1
        passages: Array = (
            self._first[context] + (entries - self._first_entry[context]) // self._size
        )
        return passages

    def span(self, passage: int) -> tuple[int, int]:
        """Returns the first entry of a passage, and the one after its last."""
        context, number = self._place(passage)
        first = int(self._first_entry[context]) + number * self._size
        return first, first + min(self._size, int(self._entries[context]) - number * self._size)

    def window(self, passage: int) -> TextWindow:
        """Returns the forward pass that gives the keys of a passage."""
        context, number = self._place(passage)
        first, last = self.span(passage)
        skip = min(self._before, number * self._size)
        start = int(self._first_token[context]) + number * self._size - skip
        return TextWindow(start, skip + last - first, skip, first, context)

    def _place(self, passage: int) -> tuple[int, int]:
        context = int(np.searchsorted(self._first, passage, side="right")) - 1
        return context, passage - int(self._first[context])


# An end that occurs more often than this says little, and gives no points.
_MOST_OCCURRENCES = 2048
# Maximum number of tokens over which an end is compared.
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
        """Finds passages at every `every`-th token of each text, or at the end of a short one."""
        first = _beginnings(texts).tolist()
        looked = [
            (begin, self._places(begin, end))
            for begin, end in zip(first, texts.end.tolist(), strict=True)
        ]
        queries: dict[tuple[int, int], bytes] = {}
        for begin, places in dict.fromkeys(looked):
            for end in places:
                start = max(begin, end - self._settings.ends - _LONGEST_END)
                queries[begin, end] = texts.tokens[start:end].astype(np.int64).tobytes()
        results = self._results_of.take(queries.values())
        new = [query for query in dict.fromkeys(queries.values()) if query not in results]
        if new:
            ends = [np.frombuffer(query, np.int64) for query in new]
            searched = dict(zip(new, self._searched(ends), strict=True))
            self._results_of.keep(searched)
            results |= searched
        unions: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
        for begin, places in dict.fromkeys(looked):
            union = {passage for end in places for passage in results[queries[begin, end]]}
            unions[begin, places] = tuple(sorted(union))
        return [unions[key] for key in looked]

    def _places(self, begin: int, end: int) -> tuple[int, ...]:
        every, kept = self._settings.every, self._settings.kept
        steps = (end - begin) // every
        if steps:
            return tuple(
                begin + every * step for step in range(max(1, steps - kept + 1), steps + 1)
            )
        return (end,) if end > begin else ()

    def _searched(self, ends: Sequence[Array]) -> list[tuple[int, ...]]:
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
            places = self._suffixes.order[low[place] : high[place]]
            entries = self._suffixes.entries(places)
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
        self._cached: Recent[int, ExactIndex] = Recent(_CACHED_BYTES, lambda keys: keys.bytes)

    def of(self, passages: tuple[int, ...]) -> list[ExactIndex]:
        """Returns an index over the keys of each passage, in the precision of stored keys."""
        indexes = self._cached.take(passages)
        new = [passage for passage in passages if passage not in indexes]
        if new:
            windows = [self._passages.window(passage) for passage in new]
            made = self._source(self._tokens, windows, dim=self._dim, dtype=self._dtype)
            for passage, keys in zip(new, made, strict=True):
                vectors = torch.from_numpy(keys.astype(np.float32))
                indexes[passage] = ExactIndex(vectors, self._metric, self._device, self._center)
            self._cached.keep({passage: indexes[passage] for passage in new})
        return [indexes[passage] for passage in passages]


# The most bytes of joined indexes that are kept. Each text of a batch has one.
_JOINED_BYTES = 256 << 20


class OnDemandRetriever(Retriever):
    """Searches the passages of a datastore that matter for each text."""

    def __init__(
        self,
        store: Datastore,
        config: KNNConfig,
        *,
        indexes: Indexes | None = None,
        source: KeySource | None = None,
    ) -> None:
        record = store.manifest.on_demand
        assert record is not None
        for name, is_set in (
            ("--retomaton", config.retomaton),
            ("--refine", config.refine),
            ("--nprobe", config.nprobe is not None),
        ):
            if is_set:
                raise ConfigError(
                    f"{store.folder} stores no keys, which {name} needs: remove {name}, or build "
                    "the datastore without --no-keys"
                )
        if source is None:
            raise DatastoreError(
                f"{store.folder} stores no keys, so a model has to compute them: open it as "
                "Memory(model, datastore)"
            )
        nothing = ExactIndex(torch.empty(0, store.manifest.dim), store.manifest.metric)
        super().__init__(store, config, index=nothing, indexes=indexes)
        self.reads_text = True
        hidden = hidden_entries(store, self.without)
        self._hidden: Array | None = None
        if len(hidden):
            self._hidden = np.zeros(len(store), bool)
            self._hidden[hidden] = True
        once = self.indexes.once
        cut = record.passage, record.context
        passages = once(store, ("passages", *cut), lambda: Passages(store.contexts, *cut))
        device = self.indexes.device
        self.keys = once(
            store, ("passage keys", *cut), lambda: PassageKeys(store, passages, source, device)
        )
        without = self.without
        suffixes = once(store, ("suffixes", config.exclude), lambda: SuffixIndex(store, without))
        self._finder = once(
            store,
            ("finder", config.exclude, record),
            lambda: PassageFinder(suffixes, passages, record),
        )
        self._passages = passages
        self._open: Recent[tuple[int, ...], tuple[ExactIndex, Tensor]] = Recent(
            _JOINED_BYTES, lambda joined_index: joined_index[0].bytes
        )

    def search(self, queries: Tensor, texts: Prefixes | None = None) -> Neighbors:
        """Finds the neighbors of queries [rows, dim] among the passages of their texts."""
        if texts is None:
            raise ConfigError(
                f"{self.store.folder} stores no keys, so a search needs the text before each "
                "query: pass it as texts="
            )
        rows: dict[tuple[int, ...], list[int]] = {}
        for row, passages in enumerate(self._finder.find(texts)):
            rows.setdefault(passages, []).append(row)
        queries = queries.detach().float()
        found: list[tuple[list[int], Tensor, Tensor]] = []
        for passages, members in rows.items():
            if passages:
                index, entries = self._joined(passages)
                near, places = index.search(queries[members], self.config.k)
                found.append((members, near, torch.where(places < 0, places, entries[places])))
        shape = len(queries), max((near.shape[1] for _, near, _ in found), default=0)
        nearness = torch.full(shape, -torch.inf, device=self.indexes.device)
        ids = torch.full(shape, -1, device=self.indexes.device)
        for members, near, entries in found:
            nearness[members, : near.shape[1]] = near
            ids[members, : near.shape[1]] = entries
        return self._voters(queries, nearness, ids, texts)

    def _joined(self, passages: tuple[int, ...]) -> tuple[ExactIndex, Tensor]:
        """Returns the index over some passages, and the entry of each of its keys."""
        if cached := self._open.take([passages]):
            return cached[passages]
        index = ExactIndex.joined(self.keys.of(passages))
        entries = np.concatenate([np.arange(*self._passages.span(passage)) for passage in passages])
        if self._hidden is not None and self._hidden[entries].any():
            index.remove(np.flatnonzero(self._hidden[entries]))
        joined_index = index, torch.from_numpy(entries).to(self.indexes.device)
        self._open.keep({passages: joined_index})
        return joined_index
