"""How large the datastore is."""

from __future__ import annotations

import numpy as np

from knn_logits.ablation.bench import Studied, half
from knn_logits.ablation.finding import Finding, Plot
from knn_logits.ablation.measuring import measure, measure_base, searching
from knn_logits.ablation.sweeps import never_rises
from knn_logits.capture.location import DEFAULT_KEY

_PARTS = (16, 8, 4, 2, 1)


def study_size(studied: Studied) -> Finding:
    """The first sixteenth of the entries, the first eighth, and so on to all of them."""
    entries = len(studied.store())
    rows = []
    for part in _PARTS:
        size = max(1, entries // part)
        if part == 1:
            found = measure_base(studied)
        else:
            index = studied.exact(rounded=half)
            index.remove(np.arange(size, entries))
            found = measure(
                studied.queries(),
                searching(studied, index, DEFAULT_KEY),
                "l2",
                studied.largest_k,
                studied.progress,
                f"size: {size:,} entries",
            )
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
