"""Studies of the settings; for each value of one, the others are chosen again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.engine.location import DEFAULT_KEY
from knn_logits.index.base import Index, pairwise
from knn_logits.index.opening import index_from_keys
from knn_logits.lab.ablation.findings import SAME, Finding, Plot, apart
from knn_logits.lab.ablation.measuring import (
    Measured,
    Search,
    exact_search,
    measure,
    measure_base,
    measure_full,
    searching,
)
from knn_logits.lab.ablation.shared_parts import Studied, half, key_places
from knn_logits.metrics import DEFAULT_METRIC, METRICS
from knn_logits.search.neighbors import Neighbors
from knn_logits.settings.config import IndexConfig

_HEADER = ("k", "λ", "τ", "perplexity")
_SIZE_PARTS = (16, 8, 4, 2, 1)
# The most numbers of keys that are gathered at once. With more they leave the processor's cache.
_NUMBERS = 1 << 19
_PROBES = 8


def study_k(studied: Studied) -> Finding:
    base = measure_base(studied)
    ks, values = base.grid.ks, base.at(0)
    falls, (first, last) = never_rises(values), apart(values[0], values[-1])
    return Finding(
        "Number of neighbors k",
        "Khandelwal et al. (2020), figure 4, find that perplexity falls with every doubling of k "
        "up to 1,024.",
        f"Perplexity goes from {first} at k {ks[0]} to {last} at k {ks[-1]}"
        + (", and no doubling makes it worse." if falls else ", but not with every doubling."),
        falls,
        ("k", "perplexity"),
        list(zip(ks, values, strict=True)),
        Plot("lines", ks, {"mixture": values}, "k", log=True),
    )


def study_lmbda(studied: Studied) -> Finding:
    base = measure_base(studied)
    lmbdas, values = base.grid.lmbdas, base.at(2)
    best = base.best.lmbda
    where = "between" if 0.25 <= best <= 0.65 else "above" if best > 0.65 else "below"
    return Finding(
        "Interpolation weight λ",
        "Khandelwal et al. (2020), figure 5, find that λ 0.25 is best for text like the model's "
        "own, and 0.65 for a domain that the model was not trained on.",
        f"λ {best:g} is best on the tuning half, which is {where} "
        + ("these numbers." if where == "between" else "both numbers."),
        0.15 <= best <= 0.75,
        ("λ", "perplexity"),
        list(zip(lmbdas, values, strict=True)),
        Plot("lines", lmbdas, {"mixture": values}, "λ", level=("model alone", base.lm)),
    )


def study_temperature(studied: Studied) -> Finding:
    base = measure_base(studied)
    temperatures, values = base.grid.temperatures, base.at(1)
    nearest = min(range(len(temperatures)), key=lambda number: abs(temperatures[number] - 1.0))
    gain = 1.0 - base.perplexity / values[nearest]
    near, best = apart(values[nearest], base.perplexity)
    return Finding(
        "Temperature τ, with k and λ retuned",
        "Xu et al. (2023) find that the temperature, which was 1 before, is one of the three "
        "reasons why a kNN-LM helps.",
        f"Temperature {base.best.temperature:.3g} is best. At {temperatures[nearest]:.3g} "
        f"perplexity is {near} in place of {best}.",
        gain > SAME,
        ("τ", "λ", "perplexity"),
        [
            (temperature, base.lmbda_at(number), values[number])
            for number, temperature in enumerate(temperatures)
        ],
        Plot("lines", temperatures, {"mixture": values}, "τ", log=True),
    )


def study_size(studied: Studied) -> Finding:
    entries = len(studied.store)

    def first_entries(size: int) -> Search:
        index = studied.exact(rounding=half)
        index.remove(np.arange(size, entries))
        return searching(studied, index)

    rows, base = [], measure_base(studied)
    for size in (max(1, entries // part) for part in _SIZE_PARTS):
        measured = base
        if size < entries:
            measured = measure(studied, f"size: {size} entries", partial(first_entries, size))
        rows.append((size, measured.best.lmbda, measured.best.temperature, measured.perplexity))
    values = [row[-1] for row in rows]
    least, most = apart(values[0], values[-1])
    return Finding(
        "Datastore size",
        "Khandelwal et al. (2020), figure 2, find that perplexity falls with the datastore's size "
        "without an end in sight, and that the best λ grows.",
        f"Perplexity goes from {least} with {rows[0][0]:,} entries to {most} "
        f"with {rows[-1][0]:,}, and the best λ from {rows[0][1]:g} to {rows[-1][1]:g}.",
        never_rises(values) and rows[-1][1] > rows[0][1],
        ("entries", "λ", "τ", "perplexity"),
        rows,
        Plot(
            "lines",
            [row[0] for row in rows],
            {"mixture": values},
            "entries",
            log=True,
            level=("model alone", base.lm),
        ),
    )


def study_place(studied: Studied) -> Finding:
    measured: dict[str, Measured] = {}
    for name, key in key_places(studied.model).items():
        if key == DEFAULT_KEY:
            measured[name] = measure_base(studied)
        else:
            measured[name] = measure(studied, f"key: {name}", exact_search(studied, key), key=key)
    best = min(measured, key=lambda name: measured[name].perplexity)
    base = measured["FFN's input"].perplexity
    compared = [name for name in (best, "FFN's input", "attention's output") if name in measured]
    lowest, usual, *attention = apart(*(measured[name].perplexity for name in compared))
    return Finding(
        "Key location",
        "Khandelwal et al. (2020), table 5, find the input of the last layer's feed-forward "
        "network best. Xu et al. (2023) find the attention's output a good key as well.",
        f"The {best} is best with {lowest}. The FFN's input gives {usual}"
        + (f", and the attention's output {attention[0]}." if attention else "."),
        base <= measured[best].perplexity * (1.0 + SAME),
        ("key", *_HEADER),
        *_rows_and_bars(measured, "key"),
    )


def study_metric(studied: Studied) -> Finding:
    measured: dict[str, Measured] = {DEFAULT_METRIC: measure_base(studied)}
    for metric in METRICS[1:]:
        opens = exact_search(studied, metric=metric)
        measured[metric] = measure(studied, f"metric: {metric}", opens, metric)
    best = min(measured, key=lambda name: measured[name].perplexity)
    holds = is_better(measured[DEFAULT_METRIC].perplexity, measured["ip"].perplexity)
    shown = apart(*(measured[metric].perplexity for metric in METRICS))
    return Finding(
        "Distance metric",
        "Khandelwal et al. (2020) find L2 distance better than the inner product.",
        ("L2 and the inner product do not differ: " if holds is None else f"{best} is best: ")
        + ", ".join(f"{metric} {value}" for metric, value in zip(METRICS, shown, strict=True))
        + ".",
        holds,
        ("metric", *_HEADER),
        *_rows_and_bars(measured, "metric"),
    )


def study_precision(studied: Studied) -> Finding:
    factory = product(studied.store.manifest.dim, len(studied.store))

    def compressed(kind: str) -> Search:
        return searching(studied, quantised(studied, kind))

    measured = {"full (float32)": measure_full(studied), "half (float16)": measure_base(studied)}
    for name, kind in (("8 bits a number (SQ8)", "SQ8"), (f"quantised ({factory})", factory)):
        measured[name] = measure(studied, f"precision: {name}", partial(compressed, kind))
    full, *_, last = (result.perplexity for result in measured.values())
    shown = apart(full, last)
    return Finding(
        "Key precision",
        "Khandelwal et al. (2020), section 5, find that distances from keys in full precision "
        "lower perplexity from 16.5, with quantised keys, to 16.06.",
        f"Full precision gives {shown[0]}, and keys quantised by {factory} give {shown[1]}.",
        is_better(full, last),
        ("keys", *_HEADER),
        *_rows_and_bars(measured, "keys"),
    )


def study_approximation(studied: Studied) -> Finding:
    store = studied.store
    lists = max(2, min(256, len(store) // 100))
    factory = f"IVF{lists},{product(store.manifest.dim, len(store))}"

    @cache
    def approximate() -> Index:
        index = quantised(studied, factory)
        index.nprobe = min(_PROBES, lists)
        return index

    indexes: dict[str, Callable[[], Index]] = {
        "exact": cache(studied.exact),
        "approximate": approximate,
    }
    measured: dict[tuple[str, str], Measured] = {}
    for names in itertools.product(indexes, indexes):
        if names == ("exact", "exact"):
            measured[names] = measure_full(studied)
            continue
        phase = f"{names[0]} neighbors, {names[1]} distances"
        measured[names] = measure(
            studied, phase, partial(_search, studied, *(indexes[name] for name in names))
        )
    exact, rough = (measured[name, name].perplexity for name in indexes)
    shown = apart(rough, exact)
    return Finding(
        "Exact and approximate search",
        "Xu et al. (2023) find that approximate neighbors and distances serve better than exact "
        "ones.",
        f"With {factory}, approximate neighbors at approximate distances give {shown[0]}, exact "
        f"ones {shown[1]} ({rough / exact - 1.0:+.1%}).",
        is_better(rough, exact),
        ("neighbors", "distances", *_HEADER),
        [(*names, *_choice(result)) for names, result in measured.items()],
        Plot(
            "bars",
            [f"{name} neighbors" for name in indexes],
            {
                f"{distances} distances": [measured[name, distances].perplexity for name in indexes]
                for distances in indexes
            },
            "",
        ),
    )


def _search(studied: Studied, finds: Callable[[], Index], compares: Callable[[], Index]) -> Search:
    """Finds neighbors with one index, and computes distances from the vectors of another."""
    search = searching(studied, finds())
    if finds is compares:
        return search
    index, states = compares(), studied.queries().states
    # Each vector is a neighbor of many queries, and a compressed one is decoded once.
    decoded = index.reconstruct(np.arange(index.size))

    def refined(rows: Tensor) -> Neighbors:
        neighbors = search(rows)
        at_once = max(1, _NUMBERS // max(1, neighbors.k * index.dim))
        pairs = zip(
            states[rows].split(at_once), neighbors.ids.clamp(min=0).split(at_once), strict=True
        )
        nearness = torch.cat(
            [pairwise(queries, decoded[ids], DEFAULT_METRIC) for queries, ids in pairs]
        )
        return Neighbors(
            neighbors.ids, nearness.masked_fill(~neighbors.mask, -torch.inf), neighbors.values
        )

    return refined


def product(dim: int, entries: int) -> str:
    """A product quantiser of one byte for 16 numbers, the paper's rate, or half of it."""
    parts = max(number for number in range(1, max(1, dim // 16) + 1) if dim % number == 0)
    return f"PQ{parts}" if entries >= 10_000 else f"PQ{parts}x4"


def quantised(studied: Studied, factory: str) -> Index:
    studied.progress(f"index {factory}", 0, None)
    return index_from_keys(studied.store, factory, IndexConfig(factory, seed=studied.seed))


def _choice(measured: Measured) -> tuple[int, float, float, float]:
    best = measured.best
    return best.k, best.lmbda, best.temperature, measured.perplexity


def _rows_and_bars(measured: dict[str, Measured], label: str) -> tuple[list[Any], Plot]:
    values = [result.perplexity for result in measured.values()]
    rows = [(name, *_choice(result)) for name, result in measured.items()]
    return rows, Plot("bars", list(measured), {"mixture": values}, label)


def is_better(perplexity: float, other: float) -> bool | None:
    """Whether a perplexity is below another; None if they count as equal."""
    if abs(perplexity - other) <= SAME * other:
        return None
    return perplexity < other


def never_rises(values: Sequence[float]) -> bool:
    """Whether no value is larger than the one before it. A change below `SAME` is ignored."""
    return all(after <= before * (1.0 + SAME) for before, after in itertools.pairwise(values))
