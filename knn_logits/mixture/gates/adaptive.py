"""`AdaptiveGate`: λ by what a search returns, for the neighbors and for verbatim matches.

p = s p_match + (1 - s) (λ p_kNN + (1 - λ) p_LM)

p_match is the distribution of the tokens that follow the longest verbatim match of the text in the
corpus. A small network computes λ and s at each step, as in He et al. (2021), section 4.1, from
features that the search has already. `building.gate_fitting` fits it.

Several datastores have a gate each, which decides by its own neighbors:

p = sum of r_j (s_j p_match_j + (1 - s_j) λ_j p_kNN_j) + Π (1 - t_j) p_LM

t_j = s_j + (1 - s_j) λ_j is what gate j gives to its datastore if it is alone, and r_j is
(1 - Π (1 - t_j)) / sum of t_j. So one datastore votes by its gate, and a datastore with nothing
near leaves the vote of the others as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from knn_logits.arrays import Array
from knn_logits.locks import Copies
from knn_logits.metrics import Metric, check_metric
from knn_logits.mixture.gates.gate import MOST_BY_NETWORK, FittedGate, Network
from knn_logits.mixture.vote import (
    Weighing,
    any_vote,
    drop_impossible,
    joint_vote,
    largest,
    log_p_knn_of,
)
from knn_logits.search.matches import Matches
from knn_logits.search.neighbors import Neighbors

FEATURES = (
    "nearness of the nearest neighbor",
    "mean nearness of the next 15, relative to it",
    "p_kNN of the neighbors' favorite token",
    "log p_LM of that token",
    "log p_LM of the model's favorite token",
    "log(1 + tokens of the longest verbatim match)",
    "square root of the match's rarity in nats",
    "share of the text that the match covers",
    "p_match of the match's favorite token",
    "log p_LM of that token",
    "p_kNN of that token",
)
# A suffix of a text that occurs more often in the corpus is no match.
MAX_OCCURRENCES = 256
_NEIGHBORS = 16
_LEAST_LOG_P = -20.0
# A smaller λ is 0: it would change no choice, and cost likelihood where nothing is near.
_FLOOR = 0.02


@dataclass(frozen=True)
class Ballots:
    """The favorites of the model, the neighbors and the match at some steps, for a fit."""

    features: Tensor  # float32 [rows, features], in the order of FEATURES
    tokens: Tensor  # int64 [rows, 3], the favorites of the model, the neighbors and the match
    found: Tensor  # bool [rows, 2], whether there are neighbors, and whether there is a match

    @classmethod
    def of(cls, neighbors: Neighbors, log_weights: Tensor, log_p_lm: Tensor) -> Ballots:
        """Reads neighbors with log w_i, [rows, k], and their first `occurrences`, on one device."""
        part = neighbors.occurrences[0]
        best_lm, by_lm = largest(log_p_lm)
        p_knn, by_knn = _favorite(log_weights, neighbors.values)
        p_match, by_match = _favorite(part.log_weights, part.values)
        found = torch.stack([p_knn, p_match], dim=-1) > 0.0
        tokens = torch.stack([by_lm, by_knn, by_match], dim=-1)
        logs = log_p_lm.gather(-1, tokens[:, 1:]).masked_fill_(~found, _LEAST_LOG_P)
        logs = logs.clamp_(min=_LEAST_LOG_P)
        p_knn_of_match = log_p_knn_of(log_weights, neighbors.values, by_match).exp_()
        nearest = neighbors.nearness.topk(min(_NEIGHBORS, neighbors.k), dim=-1).values
        present = nearest.isfinite()
        below = (nearest - nearest[:, :1]).masked_fill(~present, 0.0).sum(-1)
        features = torch.stack(
            [
                # Without any neighbor there is no column, whose sum is 0.
                nearest[:, :1].sum(-1).masked_fill(~found[:, 0], 0.0),
                below / (present.sum(-1) - 1).clamp_(min=1),
                p_knn,
                logs[:, 0],
                best_lm,
                # A match without occurrences has the length, rarity and coverage 0.
                part.lengths.float().log1p_(),
                part.rarity.sqrt(),
                part.coverage,
                p_match,
                logs[:, 1],
                p_knn_of_match * found[:, 1],
            ],
            dim=-1,
        )
        limit = torch.finfo(torch.float32).max
        return cls(features.clamp_(-limit, limit), tokens, found)


def _favorite(log_weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The token with the most weight and its probability, [rows] each; 0 without votes."""
    if not values.shape[-1]:
        return log_weights.sum(-1), values.sum(-1)
    # Equal tokens are side by side then, and each different one has a place of its own.
    values, order = values.sort(dim=-1)
    places = pad(values.diff(dim=-1).ne(0), (1, 0)).cumsum(dim=-1)
    # The order would decide how sums of less precision are rounded, and so which of two equal
    # tokens is the favorite.
    weights = log_weights.gather(-1, order).double().exp_()
    sums = torch.zeros_like(weights).scatter_add_(-1, places, weights).to(log_weights)
    p, column = sums.gather(-1, places).max(dim=-1, keepdim=True)
    return p.squeeze(-1), values.gather(-1, column).squeeze(-1)


def shares_of(logits: Tensor) -> Tensor:
    """λ and s of the network's outputs: a sigmoid, stretched so that its lowest part is 0."""
    return (torch.sigmoid(logits) * (1.0 + _FLOOR) - _FLOOR).clamp(0.0, MOST_BY_NETWORK)


class AdaptiveGate(FittedGate):
    """Computes λ for the neighbors and s for the verbatim match, from `FEATURES`.

    Both are 0 where the model's likeliest token is a control token, such as the end of a
    text, and at most 0.999. λ is 0 without neighbors, and s without a match.

    Args:
        metric: The metric of the distances that the gate was fitted for.
        arrays: The arrays of a `Network` with two outputs.
        control: Tokens that control the model, as `engine.tokens.control_tokens` lists them.

    Raises:
        ConfigError: when the arrays do not fit together.
    """

    kind = "adaptive"

    def __init__(
        self, metric: Metric, arrays: Mapping[str, Any], control: tuple[int, ...] = ()
    ) -> None:
        self.metric: Metric = check_metric(metric)
        self.control = control
        self._copies = Copies(torch.tensor(control, dtype=torch.int64))
        self._network = Network("AdaptiveGate", len(FEATURES), arrays, 2)

    def with_control(self, tokens: tuple[int, ...]) -> AdaptiveGate:
        """Returns the same gate for a model with these control tokens."""
        return AdaptiveGate(self.metric, self._network.to_arrays(), tokens)

    def shares(
        self, neighbors: Neighbors, log_weights: Tensor, log_p_lm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Computes λ and s of each row.

        Args:
            neighbors: The neighbors, with the verbatim match as the first of `occurrences`.
            log_weights: log w_i of the neighbors, float32 [rows, k].
            log_p_lm: The model's log-probabilities, float32 [rows, vocabulary].

        Returns:
            float32 [rows] each, in [0, 0.999].
        """
        ballots = Ballots.of(neighbors, log_weights, log_p_lm)
        lmbda, share = self.at(ballots.features).unbind(-1)
        active = ballots.found
        if self.control:
            (control,) = self._copies.at(active.device)
            active = active & (ballots.tokens[:, :1] != control).all(dim=-1, keepdim=True)
        return lmbda * active[:, 0], share * active[:, 1]

    def at(self, features: Tensor) -> Tensor:
        """λ and s for features float32 [rows, features], as float32 [rows, 2]."""
        return shares_of(self._network(features))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> AdaptiveGate:
        """See `FittedGate.from_arrays`."""
        return cls(metric, arrays)


@dataclass(frozen=True)
class GatedStore:
    """The gate of one datastore, and what it decides on."""

    gate: AdaptiveGate
    weighing: Weighing
    matches: Matches


def gated_vote(
    stores: Sequence[GatedStore], neighbors: Neighbors, log_p_lm: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes the weights of the neighbors and then of the matches, and λ of both.

    Args:
        stores: The datastores.
        neighbors: Their neighbors side by side, with the matches as the first `occurrences`.
        log_p_lm: The model's log-probabilities, float32 [rows, vocabulary].

    Returns:
        log w_i, float32 [rows, k + n], and λ, float32 [rows].
    """
    parts = [neighbors] if len(stores) == 1 else neighbors.split(len(stores))
    nearest, matches, rest = [], [], []
    for store, part, match in zip(stores, parts, neighbors.occurrences, strict=False):
        weights = store.weighing.log_weights(part)
        found = replace(part, occurrences=(match,))
        lmbda, share = store.gate.shares(found, weights, log_p_lm)
        matched = drop_impossible(match.log_weights, match.values, log_p_lm)
        weights = drop_impossible(weights, part.values, log_p_lm)
        share = share * any_vote(matched)
        lmbda = (1.0 - share) * lmbda * any_vote(weights)
        nearest.append((weights, lmbda))
        matches.append((matched, share))
        rest.append(1.0 - (lmbda + share))
    votes, _ = joint_vote([*nearest, *matches])
    return votes, 1.0 - torch.stack(rest).prod(dim=0)
