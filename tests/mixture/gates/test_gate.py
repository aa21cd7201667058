"""Checks of the results of a user's gate."""

import math

import pytest
import torch
from distances import from_distances
from gate_cases import neighbors_of

from knn_logits.errors import ConfigError
from knn_logits.mixture.gates.gate import weigh_rows
from knn_logits.mixture.vote import Weighing

LM = torch.log_softmax(torch.zeros(3, 5), -1)


def rows_of(distances, ids=None):
    distances = torch.tensor(distances)
    ids = torch.zeros(distances.shape, dtype=torch.int64) if ids is None else torch.tensor(ids)
    return from_distances(ids, distances, torch.zeros_like(ids), "l2")


def lmbda_of(gate, neighbors):
    return weigh_rows(gate, neighbors, neighbors.nearness, "l2", LM)[0]


def test_any_gate_is_zero_where_there_is_no_neighbor():
    class Own:
        def lmbda(self, neighbors, metric, log_p_lm):
            return torch.full((3,), 0.5, dtype=torch.float64)

    neighbors = rows_of([[1.0, math.inf]] * 3, ids=[[4, -1], [-1, -1], [2, 7]])
    lmbda = lmbda_of(Own(), neighbors)
    assert lmbda.tolist() == [0.5, 0.0, 0.5]
    assert lmbda.dtype == torch.float32
    assert lmbda_of(Own(), rows_of([[]] * 3)).tolist() == [0.0, 0.0, 0.0]


def test_what_a_gate_of_ones_own_gives_is_checked():
    class Own:
        def lmbda(self, neighbors, metric, log_p_lm):
            return torch.zeros(neighbors.rows)

        def weigh(self, neighbors, log_weights, metric, log_p_lm):
            return self.answer

    neighbors = neighbors_of([([5, 6], [3.0, 8.0], [1, 2], None)])
    weights, log_p_lm = Weighing(10.0).log_weights(neighbors), torch.log(torch.full((1, 4), 0.25))
    own = Own()
    for answer, message in (
        ((torch.full((1,), 0.5), weights[:, :1]), r"weights of shape \(1, 2\), not \(1, 1\)"),
        ((torch.full((1,), 0.5), None), "not NoneType"),
        ((torch.full((2,), 0.5), weights), r"Own must return λ of shape \(1,\)"),
        ((torch.full((1,), 1.5), weights), "between 0 and 1"),
        ((torch.full((1,), math.nan), weights), "between 0 and 1"),
        ((0.5, weights), "not float"),
    ):
        own.answer = answer
        with pytest.raises(ConfigError, match=message):
            weigh_rows(own, neighbors, weights, "l2", log_p_lm)
