"""Studies k, λ and the temperature. For each value of one, the others are chosen again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from knn_logits.lab.ablation.bench import Studied
from knn_logits.lab.ablation.finding import Finding, Plot
from knn_logits.lab.ablation.measuring import measure_base

# A smaller relative change of the perplexity counts as no change.
SAME = 0.005


def study_k(studied: Studied) -> Finding:
    """Varies k, the number of neighbors."""
    found = measure_base(studied)
    values = found.at(0)
    falls = never_rises(values)
    return Finding(
        "k, the neighbors of a query",
        "Khandelwal et al. (2020), figure 4, find that perplexity falls with every doubling of k "
        "up to 1,024.",
        f"Perplexity goes from {values[0]:.1f} at k {found.grid.ks[0]} to {values[-1]:.1f} at k "
        f"{found.grid.ks[-1]}"
        + (", and no doubling makes it worse." if falls else ", but not with every doubling."),
        falls,
        ("k", "perplexity"),
        list(zip(found.grid.ks, values, strict=True)),
        Plot("lines", found.grid.ks, {"mixture": values}, "k", log=True),
    )


def study_lmbda(studied: Studied) -> Finding:
    """Varies λ, the weight of the neighbors."""
    found = measure_base(studied)
    lmbdas, values = found.grid.lmbdas, found.at(2)
    best = found.best.lmbda
    where = "between" if 0.25 <= best <= 0.65 else "above" if best > 0.65 else "below"
    return Finding(
        "λ, the weight of the neighbors",
        "Khandelwal et al. (2020), figure 5, find that λ 0.25 is best for text like the model's "
        "own, and 0.65 for a domain that the model was not trained on.",
        f"λ {best:g} is best on the half on which it is chosen, which lies {where} "
        + ("these numbers." if where == "between" else "both numbers."),
        0.15 <= best <= 0.75,
        ("λ", "perplexity"),
        list(zip(lmbdas, values, strict=True)),
        Plot("lines", lmbdas, {"mixture": values}, "λ", level=("model alone", found.lm)),
    )


def study_temperature(studied: Studied) -> Finding:
    """Varies the temperature, with λ and k chosen again for each value."""
    found = measure_base(studied)
    temperatures, values = found.grid.temperatures, found.at(1)
    best = found.best.temperature
    nearest = min(range(len(temperatures)), key=lambda one: abs(temperatures[one] - 1.0))
    gain = 1.0 - found.perplexity / values[nearest]
    return Finding(
        "τ, the temperature, with k and λ chosen again for each value",
        "Xu et al. (2023) find that the temperature, which was 1 before, is one of the three "
        "reasons why a kNN-LM helps.",
        f"Temperature {best:.3g} is best. At {temperatures[nearest]:.3g} perplexity is "
        f"{values[nearest]:.1f} in place of {found.perplexity:.1f}.",
        gain > SAME,
        ("τ", "λ", "perplexity"),
        [
            (temperature, found.lmbda_at(number), values[number])
            for number, temperature in enumerate(temperatures)
        ],
        Plot("lines", temperatures, {"mixture": values}, "τ", log=True),
    )


def is_better(one: float, other: float) -> bool | None:
    """Whether a perplexity is below another; None if they count as equal."""
    if abs(one - other) <= SAME * other:
        return None
    return one < other


def never_rises(values: Sequence[float]) -> bool:
    """Whether no value is larger than the one before it. A change below `SAME` is ignored."""
    pairs = itertools.pairwise(values)
    return all(after <= before * (1.0 + SAME) for before, after in pairs)
