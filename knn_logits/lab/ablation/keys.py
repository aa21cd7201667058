"""Studies the place of the key, the metric, and the precision of the keys."""

from __future__ import annotations

from functools import partial

from knn_logits.engine.location import DEFAULT_KEY
from knn_logits.index.base import Index
from knn_logits.index.opening import index_from_keys
from knn_logits.lab.ablation.bench import Studied
from knn_logits.lab.ablation.finding import Finding, Plot
from knn_logits.lab.ablation.measuring import (
    Measured,
    Search,
    exact_search,
    measure,
    measure_base,
    measure_full,
    searching,
)
from knn_logits.lab.ablation.places import key_places
from knn_logits.lab.ablation.sweeps import SAME, is_better
from knn_logits.settings.config import IndexConfig, Metric

_HEADER = ("k", "λ", "τ", "perplexity")


def study_place(studied: Studied) -> Finding:
    """Varies the place of the model at which the key is read."""
    found: dict[str, Measured] = {}
    for name, key in key_places(studied.model).items():
        if key == DEFAULT_KEY:
            found[name] = measure_base(studied)
            continue
        found[name] = measure(studied, f"key: {name}", exact_search(studied, key), key=key)
    best = min(found, key=lambda one: found[one].perplexity)
    base, attention = found["FFN's input"].perplexity, found.get("attention's output")
    holds = base <= found[best].perplexity * (1.0 + SAME)
    return Finding(
        "Where the key is read",
        "Khandelwal et al. (2020), table 5, find the input of the last layer's feed-forward "
        "network best. Xu et al. (2023) find the attention's output a good key as well.",
        f"The {best} is best with {found[best].perplexity:.1f}. The FFN's input gives {base:.1f}"
        + (f", and the attention's output {attention.perplexity:.1f}." if attention else "."),
        holds,
        ("key", *_HEADER),
        _rows(found),
        _bars(found, "key"),
    )


def study_metric(studied: Studied) -> Finding:
    """Varies the metric."""
    found = {"l2": measure_base(studied)}
    metrics: tuple[Metric, ...] = ("ip", "cosine")
    for metric in metrics:
        opens = exact_search(studied, metric=metric)
        found[metric] = measure(studied, f"metric: {metric}", opens, metric)
    best = min(found, key=lambda one: found[one].perplexity)
    holds = is_better(found["l2"].perplexity, found["ip"].perplexity)
    return Finding(
        "How keys are compared",
        "Khandelwal et al. (2020) find L2 distance better than the inner product.",
        ("L2 and the inner product do not differ: " if holds is None else f"{best} is best: ")
        + f"l2 {found['l2'].perplexity:.1f}, ip {found['ip'].perplexity:.1f}, "
        f"cosine {found['cosine'].perplexity:.1f}.",
        holds,
        ("metric", *_HEADER),
        _rows(found),
        _bars(found, "metric"),
    )


def study_precision(studied: Studied) -> Finding:
    """Varies the precision of the keys."""
    store = studied.store()
    found: dict[str, Measured] = {}
    dim = store.manifest.dim
    found["full (float32)"] = measure_full(studied)
    found["half (float16)"] = measure_base(studied)
    kinds = {"8 bits a number (SQ8)": "SQ8"}
    kinds[f"quantised ({product(dim, len(store))})"] = product(dim, len(store))
    for name, factory in kinds.items():
        opens = partial(_quantised_search, studied, factory)
        found[name] = measure(studied, f"precision: {name}", opens)
    full, *_, last = (one.perplexity for one in found.values())
    return Finding(
        "How precisely keys are kept",
        "Khandelwal et al. (2020), section 5, find that distances from keys in full precision "
        "lower perplexity from 16.5, with quantised keys, to 16.06.",
        f"Full precision gives {full:.1f}, and keys quantised by {product(dim, len(store))} give "
        f"{last:.1f}.",
        is_better(full, last),
        ("keys", *_HEADER),
        _rows(found),
        _bars(found, "keys"),
    )


def _quantised_search(studied: Studied, factory: str) -> Search:
    return searching(studied, quantised(studied, factory))


def product(dim: int, entries: int) -> str:
    """Returns the factory of a product quantiser with about one byte for 16 numbers.

    This is the paper's rate. A small datastore gets half of it, since it has too few keys to train
    the quantiser.
    """
    parts = max(one for one in range(1, max(1, dim // 16) + 1) if dim % one == 0)
    return f"PQ{parts}" if entries >= 10_000 else f"PQ{parts}x4"


def quantised(studied: Studied, factory: str) -> Index:
    """Builds an index of FAISS over the keys of the base datastore."""
    studied.progress(f"index {factory}", 0, None)
    return index_from_keys(studied.store(), factory, IndexConfig(factory, seed=studied.seed))


def _rows(found: dict[str, Measured]) -> list[tuple[object, ...]]:
    return [
        (name, one.best.k, one.best.lmbda, one.best.temperature, one.perplexity)
        for name, one in found.items()
    ]


def _bars(found: dict[str, Measured], label: str) -> Plot:
    return Plot("bars", list(found), {"mixture": [one.perplexity for one in found.values()]}, label)
