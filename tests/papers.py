"""A re-derivation of kNN-LM from the papers' equations, in float64 with a dictionary of votes."""

import math

import torch
from distances import from_distances
from hypothesis import strategies as st

from knn_logits.mixture.vote import Weighing, drop_impossible, mix

INF = math.inf
FAR = {"l2": INF, "ip": -INF, "cosine": -INF}


def paper_weights(ids, distances, metric, temperature):
    """Computes w_i of one row; 0 for padding."""
    sign = -1.0 if metric == "l2" else 1.0
    found = [sign * d / temperature for one, d in zip(ids, distances, strict=True) if one >= 0]
    peak = max(found, default=0.0)
    total = sum(math.exp(logit - peak) for logit in found)
    return [
        math.exp(sign * d / temperature - peak) / total if one >= 0 else 0.0
        for one, d in zip(ids, distances, strict=True)
    ]


def paper_votes(weights, values):
    """Computes p_kNN of one row, which is the sum of the neighbors' weights for each token."""
    votes = {}
    for weight, value in zip(weights, values, strict=True):
        if weight > 0.0:
            votes[value] = votes.get(value, 0.0) + weight
    return votes


def paper_mixture(p_lm, votes, lmbda):
    if not votes:
        return list(p_lm)
    return [(1 - lmbda) * p + lmbda * votes.get(token, 0.0) for token, p in enumerate(p_lm)]


def make(ids, distances, values, **settings):
    return from_distances(
        torch.tensor(ids, dtype=torch.int64),
        torch.tensor(distances, dtype=torch.float32),
        torch.tensor(values, dtype=torch.int64),
        **settings,
    )


@st.composite
def cases(draw, metrics=("l2", "ip", "cosine"), rows=(1, 4), forbidden=False):
    """Draws neighbors and log-probabilities of a few rows, with padding last, and settings."""
    metric = draw(st.sampled_from(metrics))
    vocabulary = draw(st.integers(1, 9))
    number = draw(st.integers(*rows))
    k = draw(st.integers(1, 7))
    near = st.floats(0, 60, width=32) if metric == "l2" else st.floats(-40, 40, width=32)
    row = {"ids": [], "distances": [], "values": [], "scores": []}
    for _ in range(number):
        found = draw(st.integers(0, k))
        row["ids"].append([draw(st.integers(0, 999)) for _ in range(found)] + [-1] * (k - found))
        row["distances"].append([draw(near) for _ in range(found)] + [FAR[metric]] * (k - found))
        row["values"].append([draw(st.integers(0, vocabulary - 1)) for _ in range(k)])
        scores = [draw(st.floats(-30, 30, width=32)) for _ in range(vocabulary)]
        if forbidden:
            allowed = draw(st.integers(0, vocabulary - 1))
            out = draw(st.sets(st.integers(0, vocabulary - 1))) - {allowed}
            scores = [-INF if token in out else one for token, one in enumerate(scores)]
        row["scores"].append(scores)
    neighbors = make(row["ids"], row["distances"], row["values"], metric=metric)
    log_p_lm = torch.log_softmax(torch.tensor(row["scores"]), dim=-1)
    temperature = draw(st.sampled_from([0.5, 1.0, 3.0, 10.0, 250.0]))
    lmbda = draw(st.one_of(st.sampled_from([0.0, 1.0, 0.25]), st.floats(0, 1)))
    return metric, neighbors, log_p_lm, temperature, lmbda


def mixture(neighbors, log_p_lm, metric, temperature, lmbda):
    weights = Weighing(temperature).log_weights(neighbors)
    votes = drop_impossible(weights, neighbors.values, log_p_lm)
    return mix(log_p_lm, votes, neighbors.values, lmbda)


def same_bits(left, right):
    return torch.equal(left.view(torch.int32), right.view(torch.int32))
