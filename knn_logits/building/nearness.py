"""Measures what text like a datastore's finds in it, and which repetitions are loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from knn_logits.building.settings_choice import OVERSAMPLING, part_of_entries, without_part
from knn_logits.engine.compatibility import CANARY_KEYS
from knn_logits.index.base import Index
from knn_logits.index.opening import training_sample
from knn_logits.metrics import COMPARISONS, Metric, as_distance, equivalent_temperature
from knn_logits.search.neighbors import NEAREST, hits
from knn_logits.search.retriever import Retriever
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import NearRecord

# A written text that repeats n tokens at once loops. n is the least for which n-grams hardly ever
# repeat within this number of tokens of the datastore.
_REPEATED, _REPEATED_WITHIN, _PLACES = 0.02, 256, 64
# Number of keys that the mean square of a key is taken over.
_QUERIES = 256
_NGRAMS = (4, 6, 8, 10, 12, 16, 20, 24, 32)
_NEAR_QUERIES = 512
# With fewer entries nobody can say what is near.
_MIN_ENTRIES = 256
# This share of text like the datastore's finds a neighbor that counts as near
# (docs/research/evidence.md).
_NEAR_QUANTILE = 0.95
# A neighbor within this share of the mean distance between neighbors counts as near, too.
_LEAST_SPREAD = 0.1


@dataclass(frozen=True)
class Nearness:
    """The neighbors of a sample of a datastore's entries in the datastore's other documents."""

    # float32 [queries, k], the nearness of neighbors, the nearest first; -inf for none.
    nearest: Tensor
    # bool [queries], whether one of the neighbors has the token that follows the query.
    hits: Tensor


def nearness_of(store: Datastore, index: Index, seed: int = 0) -> Nearness | None:
    """Searches a datastore with a sample of its entries, as if their documents were new."""
    removed = store.removed_entries
    order = np.random.default_rng(seed).permutation(len(store))
    queries = np.sort(order[~np.isin(order, removed)][:_NEAR_QUERIES])
    k = min(len(store), OVERSAMPLING * NEAREST + 1)
    retriever = Retriever(store, KNNConfig(k=k), index=index)
    keys = torch.from_numpy(store.keys(queries).astype(np.float32))
    neighbors = retriever.search(keys).to("cpu")
    if len(removed):
        hidden = torch.from_numpy(np.isin(neighbors.ids.numpy(), removed))
        neighbors = replace(neighbors, ids=neighbors.ids.masked_fill(hidden, -1))
    # Where all of the text is one part, only the query's own entry is left out.
    for parts in (part_of_entries(store), np.arange(len(store), dtype=np.int32)):
        outside = without_part(neighbors, torch.from_numpy(parts[queries]), parts)
        if float((outside.mask.sum(dim=-1) >= 2).float().mean()) >= 0.5:
            values = store.values[torch.from_numpy(queries)]
            return Nearness(outside.nearest(NEAREST).nearness, hits(outside, values))
    return None


def near_record(store: Datastore, nearness: Nearness | None) -> NearRecord | None:
    """Summarises what text like a datastore's finds in it; None where it is too small."""
    if nearness is None or len(store) < _MIN_ENTRIES:
        return None
    rows = nearness.nearest[nearness.nearest[:, 0].isfinite()].double()
    limit = float(rows[:, 0].quantile(1.0 - _NEAR_QUANTILE))
    perfect = COMPARISONS[store.manifest.metric].perfect
    if perfect is not None:
        # Where all text occurs twice, the nearest key equals the query, up to rounding.
        below = rows[:, :1] - rows
        limit = min(limit, perfect - _LEAST_SPREAD * float(below[below.isfinite()].mean()))
    # The numbers are rounded, so that the same keys give the same bytes.
    limit = float(f"{limit:.6g}")
    return NearRecord(
        distance=as_distance(limit, store.manifest.metric),
        hits=round(float(nearness.hits.double().mean()), 4),
    )


def like_temperature(store: Datastore, temperature: float, metric: Metric) -> float:
    """Converts a temperature that was chosen for a metric to the datastore's metric."""
    if metric == store.manifest.metric:
        return temperature
    keys = training_sample(store, _QUERIES, seed=0) if store.has_keys else store.checks[CANARY_KEYS]
    mean_square = max(float(np.square(keys).sum(axis=-1).mean()), 1e-12)
    # The number is rounded, so that going to another metric and back changes nothing.
    like = equivalent_temperature(temperature, metric, store.manifest.metric, mean_square)
    return float(f"{like:.8g}")


def unrepeated_ngram(store: Datastore, seed: int = 0) -> int | None:
    """The smallest n for which n-grams hardly ever repeat within a page; None for none."""
    tokens, size = store.tokens, _REPEATED_WITHIN
    if len(tokens) < 2 * size:
        return 8
    starts = np.random.default_rng(seed).integers(0, len(tokens) - size, _PLACES)
    pages = [np.asarray(tokens[start : start + size]).tolist() for start in starts.tolist()]
    for n in _NGRAMS:
        count = size - n + 1
        distinct = [len({tuple(page[at : at + n]) for at in range(count)}) for page in pages]
        if 1.0 - sum(distinct) / (count * len(pages)) <= _REPEATED:
            return n
    return None
