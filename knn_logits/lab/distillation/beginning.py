"""Where the rows of a learned memory begin: at the centers of their tokens' states."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Ints
from knn_logits.progress import Progress
from knn_logits.store.datastore import Datastore

# So many states a row are looked at, and so often the centers are moved.
_STATES_A_ROW, _MOVES = 64, 3
# A center of few states is drawn to the mean of all states.
_DRAWN = 2.0


def centers(
    store: Datastore,
    entries: Ints,
    order: Ints,
    allotted: Ints,
    random: np.random.Generator,
    progress: Progress,
) -> tuple[Tensor, Tensor, float]:
    """Finds centers of the states before each token by k-means, token by token.

    Args:
        store: The datastore whose keys are the states.
        entries: int64 [entries], those to learn from, sorted by their tokens.
        order: int64 [tokens], where each token's entries begin among them.
        allotted: int64 [tokens], the number of centers of each.
        random: Draws the first centers.
        progress: Told how many centers are found.

    Returns:
        float32 [rows, dim], the centers less the mean of all states; float32 [dim], this mean; and
        the mean squared distance of a state from it.
    """
    ends = np.append(order[1:], len(entries))
    total = int(allotted.sum())
    found = torch.empty(total, store.manifest.dim)
    sample = np.sort(random.permutation(entries)[:8192])
    some = torch.from_numpy(store.keys(sample).astype(np.float32))
    mean = some.mean(dim=0)
    variance = float((some - mean).square().sum(dim=-1).mean())
    first = 0
    for token, number in enumerate(allotted.tolist()):
        own = entries[order[token] : ends[token]]
        if len(own) > _STATES_A_ROW * number:
            own = random.choice(own, _STATES_A_ROW * number, replace=False)
        states = torch.from_numpy(store.keys(np.sort(own)).astype(np.float32)) - mean
        place = torch.zeros(len(states), dtype=torch.int64)
        center = states[torch.from_numpy(random.permutation(len(states))[:number])]
        for _ in range(_MOVES if number > 1 else 1):
            if number > 1:
                distances = torch.addmm(center.square().sum(-1), states, center.T, alpha=-2.0)
                place = distances.argmin(dim=-1)
            counts = torch.bincount(place, minlength=number).unsqueeze(-1)
            moved = torch.zeros_like(center).index_add_(0, place, states)
            center = torch.where(counts > 0, moved / counts.clamp(min=1), center)
        found[first : first + number] = center * (counts / (counts + _DRAWN)).clamp(min=0.3)
        first += number
        progress("centers", first, total)
    return found, mean, variance
