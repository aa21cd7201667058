"""Measures how near neighbors are within a datastore, which defines "near" for its text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from knn_logits.building.calibration import OVERSAMPLING, part_of_entries, without_part
from knn_logits.index.base import Index
from knn_logits.search.neighbors import NEAREST, hits
from knn_logits.search.retriever import Retriever
from knn_logits.settings.config import KNNConfig, as_distance
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import NearRecord

_QUERIES = 512
# With fewer entries nobody can say what is near.
_FEWEST = 256
# This share of text like the datastore's finds a neighbor that counts as near (LOG.md).
_NEAR = 0.95
# A neighbor within this share of the mean distance between neighbors counts as near, too.
_LEAST_SPREAD = 0.1
# The distance from a key to itself, up to rounding.
_PERFECT = {"l2": 0.0, "cosine": 1.0}


@dataclass(frozen=True)
class Nearness:
    """What a sample of a datastore's entries finds in the datastore's other documents."""

    # float32 [queries, k], the nearness of neighbors, the nearest first; -inf for none.
    nearest: Tensor
    # bool [queries], whether one of the neighbors has the token that follows the query.
    hits: Tensor


def nearness_of(store: Datastore, index: Index, seed: int = 0) -> Nearness | None:
    """Searches a datastore with a sample of its own entries; None where it has too few.

    Entries of the query's document do not count as neighbors, as if that document were new.
    """
    removed = store.removed_entries
    order = np.random.default_rng(seed).permutation(len(store))
    queries = np.sort(order[~np.isin(order, removed)][:_QUERIES])
    k = min(len(store), OVERSAMPLING * NEAREST + 1)
    retriever = Retriever(store, KNNConfig(k=k), index=index)
    keys = torch.from_numpy(store.keys(queries).astype(np.float32))
    neighbors = retriever.search(keys).to("cpu")
    if len(removed):
        hidden = torch.from_numpy(np.isin(neighbors.ids.numpy(), removed))
        neighbors = replace(neighbors, ids=neighbors.ids.masked_fill(hidden, -1), every_row=False)
    # Where all of the text is one part, only the query's own entry is left out.
    for parts in (part_of_entries(store), np.arange(len(store), dtype=np.int32)):
        outside = without_part(neighbors, torch.from_numpy(parts[queries]), parts)
        if float((outside.mask.sum(dim=-1) >= 2).float().mean()) >= 0.5:
            values = store.values[torch.from_numpy(queries)]
            return Nearness(outside.nearest(NEAREST).nearness, hits(outside, values))
    return None


def near_record(store: Datastore, nearness: Nearness | None) -> NearRecord | None:
    """Summarises what text like a datastore's finds in it; None where it is too small to say.

    The record has the distance within which 95% of the entries find a neighbor in another document,
    and the share of hits.
    """
    if nearness is None or len(store) < _FEWEST:
        return None
    rows = nearness.nearest[nearness.nearest[:, 0].isfinite()].double()
    limit = float(rows[:, 0].quantile(1.0 - _NEAR))
    perfect = _PERFECT.get(store.manifest.metric)
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
