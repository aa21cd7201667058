"""Measures how near neighbors are within a datastore, which defines "near" for its text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from knn_logits.building.calibration import part_of_entries, without_own_part
from knn_logits.index.base import Index
from knn_logits.search.neighbors import NEAREST, Neighbors, hits
from knn_logits.search.retriever import Retriever
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import NearRecord

_QUERIES = 512
# So many neighbors are asked for each that is wanted, since many are in the query's own document.
_OVER_ASK = 4
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
    """What a sample of a datastore's entries finds in the datastore's other documents.

    Each query is a key of the datastore. Entries of its own document do not count as neighbors, as
    if that document were new.

    Attributes:
        distances: float32 [queries, k], the nearest first. Larger is nearer, so a distance of the
            metric "l2" is negated. A missing neighbor has -inf.
        hits: bool [queries], whether one of the neighbors has the token that follows the query.
    """

    distances: Tensor
    hits: Tensor


def nearness_of(store: Datastore, index: Index, seed: int = 0) -> Nearness | None:
    """Searches a datastore with a sample of its own entries.

    Args:
        store: The datastore, with its keys. Its manifest need not be written yet.
        index: The index over its keys.
        seed: Seed of the sample.

    Returns:
        What was found; None where there are too few entries for it.
    """
    gone = store.removed_entries
    ids = np.random.default_rng(seed).permutation(len(store))
    ids = np.sort(ids[~np.isin(ids, gone)][:_QUERIES] if len(gone) else ids[:_QUERIES])
    retriever = Retriever(store, KNNConfig(k=min(len(store), _OVER_ASK * NEAREST + 1)), index=index)
    found = retriever.search(torch.from_numpy(store.keys(ids).astype(np.float32))).to("cpu")
    if len(gone):
        hidden = torch.from_numpy(np.isin(found.ids.numpy(), gone))
        found = replace(found, ids=found.ids.masked_fill(hidden, -1), every_row=False)
    parts = part_of_entries(store)
    others = without_own_part(found, torch.from_numpy(parts[ids]), parts)
    if not _enough(others):
        # All of the text is one part, so only the query's own entry is left out.
        entries = np.arange(len(store), dtype=np.int32)
        others = without_own_part(found, torch.from_numpy(entries[ids]), entries)
    if not _enough(others):
        return None
    nearest = others.nearest(NEAREST).nearness
    return Nearness(nearest, hits(others, store.values[torch.from_numpy(ids)]))


def near_record(store: Datastore, nearness: Nearness | None) -> NearRecord | None:
    """Summarises what text like a datastore's finds in it.

    Args:
        store: The datastore.
        nearness: From `nearness_of`.

    Returns:
        The distance within which 95% of the datastore's entries find a neighbor in another
        document, and the share of hits; None where the datastore is too small to say.
    """
    if nearness is None or len(store) < _FEWEST:
        return None
    rows = nearness.distances[nearness.distances[:, 0].isfinite()].double()
    found = float(rows[:, 0].quantile(1.0 - _NEAR))
    perfect = _PERFECT.get(store.manifest.metric)
    if perfect is not None:
        # Where all text occurs twice, the nearest key equals the query, up to rounding.
        below = rows[:, :1] - rows
        found = min(found, perfect - _LEAST_SPREAD * float(below[below.isfinite()].mean()))
    # The numbers are rounded, so that the same keys give the same bytes.
    found = float(f"{found:.6g}")
    return NearRecord(
        distance=-found if store.manifest.metric == "l2" else found,
        hits=round(float(nearness.hits.double().mean()), 4),
    )


def _enough(neighbors: Neighbors) -> bool:
    return bool((neighbors.mask.sum(dim=-1) >= 2).float().mean() >= 0.5)
