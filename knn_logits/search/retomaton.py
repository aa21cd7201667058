"""RetoMaton: follows pointers, and searches where few are left. Alon et al. (2022)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, DatastoreError
from knn_logits.index.opening import hidden_entries
from knn_logits.metrics import COMPARISONS
from knn_logits.search.neighbors import Neighbors, Prefixes, joined
from knn_logits.search.retriever import Retriever
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.manifest import needs_text

# Number of steps that are kept: drafts may be rejected, and an assistant's steps come in between.
_STEPS_CACHED = 64
# Rows with few pointers are read together. A thousand keys fit a core's cache, a batch's do not.
_KEYS_AT_ONCE = 1024
_NOTHING: Array = np.empty(0, np.int64)


@dataclass(frozen=True)
class Candidates:
    """The entries that voted in one row's step, in no particular order."""

    ids: Array  # int64 [entries], the numbers of the entries
    values: Array  # Integers [entries], their tokens
    nearness: Array  # float32 [entries], larger is nearer


@dataclass(frozen=True)
class _Step:
    """The state of one step for the next: the texts of its rows, and the candidates of each."""

    ids: Tensor
    candidates: list[Candidates]


class Pointers:
    """Finds the entries that follow the entries of the chosen token."""

    def __init__(self, store: Datastore, max_knns: int, without: Array | None = None) -> None:
        self._max = max_knns
        # Whether the next entry belongs to the same document and is not removed.
        self._goes_on = store.goes_on.copy()
        hidden = np.zeros(len(store), dtype=bool)
        hidden[hidden_entries(store, without)] = True
        self._goes_on[:-1] &= ~hidden[1:]
        self._clusters: Array | None = store.clusters
        if self._clusters is not None:
            shown = np.flatnonzero(~hidden)
            labels = np.asarray(self._clusters)[shown]
            self._members = shown[np.argsort(labels, kind="stable")]
            sizes = np.bincount(labels, minlength=int(labels.max(initial=0)) + 1)
            self._first = np.concatenate([[0], np.cumsum(sizes)])

    def after(self, candidates: Candidates, token: int) -> Array:
        """The entries after candidates with the chosen token, at most `max_knns`, the nearest."""
        chosen = np.flatnonzero(candidates.values == token)
        if len(chosen) > self._max:
            chosen = chosen[np.lexsort((candidates.ids[chosen], -candidates.nearness[chosen]))]
        ids = candidates.ids[chosen]
        following: Array = ids[self._goes_on[ids]] + 1
        return following

    def extended(self, pointers: Array) -> Array:
        """Adds members of the pointers' clusters, those with most pointers first (section 3.2)."""
        missing = self._max - len(pointers)
        if self._clusters is None or not len(pointers) or missing <= 0:
            return pointers[: self._max]
        # This takes a few microseconds. `np.unique` would take a tenth of a millisecond.
        counts = np.bincount(self._clusters[pointers])
        numbers = np.flatnonzero(counts)
        numbers = numbers[np.argsort(-counts[numbers], kind="stable")]
        first, last = self._first[numbers], self._first[numbers + 1]
        # The number of members of each cluster that are not pointers already.
        added = np.cumsum(last - first - counts[numbers])
        needed = int(np.searchsorted(added, missing)) + 1
        members = np.concatenate(
            [
                self._members[start : min(end, start + self._max)]
                for start, end in zip(first[:needed].tolist(), last[:needed].tolist(), strict=True)
            ]
        )
        new = ~_within(members, pointers)
        return np.concatenate([pointers, members[new][:missing]])


class RetomatonRetriever(Retriever):
    """Follows pointers, and searches a datastore only where too few of them are left."""

    follows_text = True

    def __init__(self, store: Datastore, config: KNNConfig, **settings: Any) -> None:
        needs_text(store.manifest, store.folder, "RetoMaton")
        if store.manifest.pairs is not None:
            raise ConfigError("RetoMaton needs a causal model: remove --retomaton")
        if not store.offers_keys:
            raise DatastoreError(
                f"{store.folder} has no keys to compare pointers with: remove --retomaton, or "
                "fetch the keys with `knn-logits pull --keys`"
            )
        store.fetch_keys()
        super().__init__(store, config, **settings)
        self._pointers = self.indexes.once(
            store,
            ("pointers", config.exclude, config.max_knns),
            lambda: Pointers(store, config.max_knns, self.without),
        )
        self._thread = threading.local()

    def begin_text(self) -> None:
        """Begins a new text. An earlier text may have contained the new text's prompt."""
        self._thread.steps = deque(maxlen=_STEPS_CACHED)

    def search(self, queries: Tensor, texts: Prefixes | None = None) -> Neighbors:
        """See `Retriever.search`; follows the pointers that each text's last step has left."""
        # Beams are reordered, doubled and dropped. So a row takes the pointers of the row that it
        # continues, or searches.
        if texts is None:
            return super().search(queries)
        if not hasattr(self._thread, "steps"):
            self.begin_text()
        steps: deque[_Step] = self._thread.steps
        lengths = texts.end - texts.first
        bounds = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
        found = []
        for first, last in pairwise(bounds):
            part, step_queries = texts[first:last], queries[first:last]
            columns = part.first[:, None] + np.arange(lengths[first])
            ids = torch.from_numpy(part.tokens[columns].astype(np.int64))
            pointers = self._pointers_of(ids, steps)
            neighbors, candidates = self._step(step_queries, pointers, part)
            steps.append(_Step(ids, candidates))
            found.append(neighbors)
        return _stacked(found)

    def _pointers_of(self, ids: Tensor, steps: Sequence[_Step]) -> list[Array]:
        """Returns the pointers that each row's own text left in the latest step."""
        before = ids[:, :-1]
        for step in reversed(steps):
            if step.ids.shape[1] != before.shape[1]:
                continue
            chosen = ids[:, -1].tolist()
            if step.ids.shape == before.shape and torch.equal(step.ids, before):
                parents = list(range(len(chosen)))
            else:
                same = (before.unsqueeze(1) == step.ids.unsqueeze(0)).all(dim=-1)
                matched = same.any(dim=-1).tolist()
                places = same.int().argmax(dim=-1).tolist()
                parents = [
                    place if matches else -1 for place, matches in zip(places, matched, strict=True)
                ]
            if max(parents) < 0:
                continue
            return [
                self._pointers.after(step.candidates[parent], token) if parent >= 0 else _NOTHING
                for parent, token in zip(parents, chosen, strict=True)
            ]
        return [_NOTHING] * len(ids)

    def _step(
        self, queries: Tensor, pointers: list[Array], texts: Prefixes
    ) -> tuple[Neighbors, list[Candidates]]:
        """Makes one step of all rows, with one search for the rows that need it."""
        searching = [
            row for row, entries in enumerate(pointers) if len(entries) < self.config.min_knns
        ]
        followed = [self._pointers.extended(entries) for entries in pointers]
        distances = self._distances(queries, followed)
        ids: list[Array] = list(followed)
        if searching:
            places = torch.tensor(searching, device=queries.device)
            nearest = super().search(queries[places]).to("cpu")
            nearest_ids, nearest_nearness = nearest.ids.numpy(), nearest.nearness.numpy()
            for place, row in enumerate(searching):
                present = nearest_ids[place] >= 0
                new_ids = nearest_ids[place][present]
                new_distances = nearest_nearness[place][present]
                if len(followed[row]):
                    new = ~_within(followed[row], new_ids)
                    new_ids = np.concatenate([new_ids, followed[row][new]])
                    new_distances = np.concatenate([new_distances, distances[row][new]])
                ids[row], distances[row] = new_ids, new_distances
        pointed = None
        if any(map(len, pointers)):
            pairs = zip(ids, pointers, strict=True)
            pointed = [_within(entries, starts).astype(np.float32) for entries, starts in pairs]
        neighbors, candidates = self._gathered(ids, distances, searching, pointed)
        if self._shared is not None:
            neighbors = replace(neighbors, shared=self._shared.count(neighbors.ids, texts))
        return neighbors, candidates

    def _gathered(
        self,
        ids: list[Array],
        distances: list[Array],
        searching: list[int],
        pointed: list[Array] | None,
    ) -> tuple[Neighbors, list[Candidates]]:
        all_ids = _side_by_side(ids, -1)
        values = np.take(self._array, all_ids, mode="clip") if len(self._array) else all_ids
        candidates = [
            Candidates(entries, values[row, : len(entries)], nearness)
            for row, (entries, nearness) in enumerate(zip(ids, distances, strict=True))
        ]
        searched = np.zeros(len(ids), bool)
        searched[searching] = True
        neighbors = Neighbors(
            torch.from_numpy(all_ids),
            torch.from_numpy(_side_by_side(distances, -np.inf)),
            torch.from_numpy(values).long(),
            self.metric,
            searched=torch.from_numpy(searched),
            pointed=None if pointed is None else torch.from_numpy(_side_by_side(pointed, 0.0)),
        )
        return neighbors, candidates

    def _distances(self, queries: Tensor, ids: list[Array]) -> list[Array]:
        """How near each row's own entries are, float32."""
        comparison, queries = COMPARISONS[self.metric], queries.detach().float().cpu()
        if comparison.unit_length:
            queries = comparison.prepared(queries)
        return list(map(comparison.of_query, queries.numpy(), self._vectors(ids)))

    def _vectors(self, ids: list[Array]) -> Iterator[Array]:
        """Yields the keys of each row's entries, float32 [entries, dim]."""
        reads = (np.cumsum([len(entries) for entries in ids]) // _KEYS_AT_ONCE).tolist()
        for _, rows in groupby(zip(reads, ids, strict=True), itemgetter(0)):
            together = [entries for _, entries in rows]
            keys = torch.from_numpy(self.store.keys(np.concatenate(together))).float()
            yield from (part.numpy() for part in keys.split([len(one) for one in together]))


def _within(entries: Array, others: Array) -> Array:
    """Whether each entry is one of the others, as `np.isin`, which takes five times as long."""
    if not len(others):
        return np.zeros(len(entries), bool)
    others = np.sort(others)
    same: Array = np.take(others, np.searchsorted(others, entries), mode="clip") == entries
    return same


def _side_by_side(rows: list[Array], padding: float) -> Array:
    """Returns the arrays of all rows as one, [rows, longest]. A single row needs no copy."""
    if len(rows) == 1:
        return rows[0][None]
    table = np.full((len(rows), max(map(len, rows))), padding, rows[0].dtype)
    for row, entries in enumerate(rows):
        table[row, : len(entries)] = entries
    return table


def _stacked(steps: list[Neighbors]) -> Neighbors:
    if len(steps) == 1:
        return steps[0]
    width = max(step.k for step in steps)
    return joined(
        [step.padded(width) for step in steps],
        0,
        searched=torch.cat([step.searched for step in steps if step.searched is not None]),
    )
