"""Gates do not depend on the order of neighbors that are equally near."""

from dataclasses import replace

import pytest
import torch
from distances import from_distances
from gate_cases import random_adaptive, random_meta_k

from knn_logits.mixture.gates.gate import weigh_rows
from knn_logits.mixture.vote import Weighing
from knn_logits.search.neighbors import Occurrences, powers_up_to


@pytest.mark.parametrize("kind", ["meta-k", "adaptive"])
def test_the_order_of_equally_near_neighbors_changes_nothing(kind):
    random = torch.Generator().manual_seed(0)
    rows, k = 8, 40
    # Pairs of tokens with the same distances, so that sums in another order decide the favorite.
    distances = torch.rand(rows, k // 8, generator=random).repeat_interleave(4, -1).repeat(1, 2)
    values = torch.randint(0, 4, (rows, k // 2), generator=random)
    values = torch.cat([values, values + 4], dim=-1)
    ids = torch.arange(k).expand(rows, -1)
    log_p_lm = torch.randn(rows, 9, generator=random).mul(3).log_softmax(-1)
    gate = random_meta_k("l2", powers_up_to(k)) if kind == "meta-k" else random_adaptive(units=8)
    expected = None
    for _ in range(20):
        order = torch.stack([torch.randperm(k, generator=random) for _ in range(rows)])
        parts = (part.gather(-1, order) for part in (ids, distances, values))
        neighbors = replace(from_distances(*parts), occurrences=(Occurrences.none(rows),))
        weights = Weighing(0.3).log_weights(neighbors)
        asked = neighbors, weights, "l2", log_p_lm
        lmbda = (
            weigh_rows(gate, *asked)[0]
            if kind == "meta-k"
            else gate.shares(*asked[:2], log_p_lm)[0]
        )
        expected = lmbda if expected is None else expected
        torch.testing.assert_close(lmbda, expected, rtol=1e-4, atol=1e-5)
