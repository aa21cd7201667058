"""Studies the size of the datastore."""

from __future__ import annotations

from functools import partial

import numpy as np

from knn_logits.lab.ablation.bench import Studied, half
from knn_logits.lab.ablation.finding import Finding, Plot
from knn_logits.lab.ablation.measuring import Search, measure, measure_base, searching
from knn_logits.lab.ablation.sweeps import never_rises

_PARTS = (16, 8, 4, 2, 1)


def _first(studied: Studied, size: int) -> Search:
    """Searches the first entries only."""
    index = studied.exact(rounded=half)
    index.remove(np.arange(size, len(studied.store())))
    return searching(studied, index)


def study_size(studied: Studied) -> Finding:
    """Varies the number of entries, from the first sixteenth to all of them."""
    entries = len(studied.store())
    rows = []
    for part in _PARTS:
        size = max(1, entries // part)
        if part == 1:
            found = measure_base(studied)
        else:
            found = measure(studied, f"size: {size} entries", partial(_first, studied, size))
        rows.append((size, found.best.lmbda, found.best.temperature, found.perplexity))
    values = [row[-1] for row in rows]
    falls = never_rises(values)
    grows = rows[-1][1] > rows[0][1]
    return Finding(
        "How large the datastore is",
        "Khandelwal et al. (2020), figure 2, find that perplexity falls with the datastore's size "
        "without an end in sight, and that the best λ grows.",
        f"Perplexity goes from {values[0]:.1f} with {rows[0][0]:,} entries to {values[-1]:.1f} "
        f"with {rows[-1][0]:,}, and the best λ from {rows[0][1]:g} to {rows[-1][1]:g}.",
        falls and grows,
        ("entries", "λ", "τ", "perplexity"),
        rows,
        Plot(
            "lines",
            [row[0] for row in rows],
            {"mixture": values},
            "entries",
            log=True,
            level=("model alone", found.lm),
        ),
    )
