"""Compares exact and approximate neighbors, each with exact and approximate distances."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from knn_logits.index.base import Index, pairwise
from knn_logits.lab.ablation.bench import Studied
from knn_logits.lab.ablation.finding import Finding, Plot
from knn_logits.lab.ablation.keys import product, quantised
from knn_logits.lab.ablation.measuring import Measured, Search, measure, measure_full, searching
from knn_logits.lab.ablation.sweeps import is_better
from knn_logits.search.neighbors import Neighbors

# The most numbers of keys that are gathered at once. With more they leave the processor's cache.
_NUMBERS = 1 << 19
_PROBES = 8


def study_approximation(studied: Studied) -> Finding:
    """Varies which neighbors are found and how their distances are computed.

    The paper calls these the mask and the score.
    """
    store = studied.store()
    lists = max(2, min(256, len(store) // 100))
    factory = f"IVF{lists},{product(store.manifest.dim, len(store))}"
    indexes = {
        "exact": cache(studied.exact),
        "approximate": cache(partial(_rough, studied, factory, min(_PROBES, lists))),
    }
    found: dict[tuple[str, str], Measured] = {}
    for neighbors, finds in indexes.items():
        for distances, keeps in indexes.items():
            if finds is keeps is indexes["exact"]:
                found[neighbors, distances] = measure_full(studied)
                continue
            phase = f"{neighbors} neighbors, {distances} distances"
            opens = partial(_search, studied, finds, keeps)
            found[neighbors, distances] = measure(studied, phase, opens)
    both, rougher = found["exact", "exact"], found["approximate", "approximate"]
    change = rougher.perplexity / both.perplexity - 1.0
    return Finding(
        "Exact and approximate neighbors, exact and approximate distances",
        "Xu et al. (2023) find that approximate neighbors and distances serve better than exact "
        "ones.",
        f"With {factory}, approximate neighbors at approximate distances give "
        f"{rougher.perplexity:.1f}, exact ones {both.perplexity:.1f} ({change:+.1%}).",
        is_better(rougher.perplexity, both.perplexity),
        ("neighbors", "distances", "k", "λ", "τ", "perplexity"),
        [
            (*name, one.best.k, one.best.lmbda, one.best.temperature, one.perplexity)
            for name, one in found.items()
        ],
        Plot(
            "bars",
            ["exact neighbors", "approximate neighbors"],
            {
                f"{distances} distances": [
                    found[neighbors, distances].perplexity for neighbors in ("exact", "approximate")
                ]
                for distances in ("exact", "approximate")
            },
            "",
        ),
    )


def _rough(studied: Studied, factory: str, nprobe: int) -> Index:
    index = quantised(studied, factory)
    index.nprobe = nprobe  # type: ignore[attr-defined]
    return index


def _search(studied: Studied, finds: Callable[[], Index], keeps: Callable[[], Index]) -> Search:
    """Finds neighbors with one index, and computes distances from the vectors of another."""
    plain = searching(studied, finds())
    return plain if finds is keeps else _again(plain, keeps(), studied.queries().states)


def _again(plain: Search, kept: Index, queries: Tensor) -> Search:
    # Each vector is a neighbor of many queries, and a compressed one is decoded once.
    decoded = kept.reconstruct(np.arange(kept.size))

    def refined(rows: Tensor) -> Neighbors:
        found = plain(rows)
        at_once = max(1, _NUMBERS // max(1, found.k * kept.dim))
        parts = []
        for some, ids in zip(
            queries[rows].split(at_once), found.ids.clamp(min=0).split(at_once), strict=True
        ):
            parts.append(pairwise(some, decoded[ids], "l2"))
        nearness = torch.cat(parts).masked_fill(~found.mask, -torch.inf)
        return Neighbors(found.ids, nearness, found.values)

    return refined
