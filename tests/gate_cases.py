"""Neighbors and gates for tests, and a plain re-derivation of `MetaKGate`."""

import math

import numpy as np
import torch
from distances import from_distances
from hypothesis import strategies as st

from knn_logits import MetaKGate
from knn_logits.mixture.gates.adaptive import FEATURES, AdaptiveGate

FAR = {"l2": math.inf, "ip": -math.inf, "cosine": -math.inf}
KS = (1, 2, 4, 8, 16)


class Curve:
    """A gate of a user's: λ is a curve over the nearest neighbor's distance."""

    def __init__(self, metric, distances, lmbdas):
        self.metric, self.distances, self.lmbdas = metric, distances, lmbdas

    def lmbda(self, neighbors, metric, log_p_lm):
        if not neighbors.k:
            return torch.zeros(neighbors.rows)
        nearest = neighbors.distances.gather(-1, neighbors.nearness.argmax(-1, keepdim=True))
        return torch.from_numpy(np.interp(nearest[:, 0].cpu(), self.distances, self.lmbdas))


@st.composite
def rows_of_neighbors(draw):
    """Draws a metric, and rows of (ids, distances, values, the model's log-probabilities)."""
    metric = draw(st.sampled_from(["l2", "ip", "cosine"]))
    vocabulary, k = draw(st.integers(1, 6)), draw(st.integers(0, 20))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.integers(0, k))
        near = st.integers(0, 400) if metric == "l2" else st.integers(-400, 400)
        # All distances differ, since the order of equally near neighbors is not defined.
        distances = draw(st.lists(near, min_size=number, max_size=number, unique=True))
        scores = [draw(st.floats(-30, 30, width=32)) for _ in range(vocabulary)]
        scores[draw(st.integers(0, vocabulary - 1))] = 5.0
        if draw(st.booleans()):
            scores[0] = scores[0] if vocabulary == 1 else -math.inf
        rows.append(
            (
                [3] * number + [-1] * (k - number),
                [one / 8 for one in distances] + [FAR[metric]] * (k - number),
                [draw(st.integers(0, vocabulary - 1)) for _ in range(k)],
                torch.log_softmax(torch.tensor(scores), -1).tolist(),
            )
        )
    return metric, rows


def neighbors_of(rows, metric="l2"):
    ids, distances, values = ([row[place] for row in rows] for place in range(3))
    return from_distances(
        torch.tensor(ids, dtype=torch.int64).reshape(len(rows), -1),
        torch.tensor(distances, dtype=torch.float32).reshape(len(rows), -1),
        torch.tensor(values, dtype=torch.int64).reshape(len(rows), -1),
        metric,
    )


def naive_features(ids, distances, values, metric, log_p):
    """Computes the features of a row that do not depend on k, from lists."""
    entropy = -sum(math.exp(one) * one for one in log_p if one > -math.inf)
    model = [max(log_p), entropy]
    places = nearest_places(ids, distances, metric)
    if not places:
        return [0.0] * 4 + model
    few = places[:16]
    value = values[few[0]]
    return [
        distances[few[0]],
        sum(distances[place] for place in few) / len(few),
        sum(values[place] == value for place in few) / len(few),
        max(log_p[value], -20.0),
        *model,
    ]


def nearest_places(ids, distances, metric):
    """Returns the places of the neighbors without padding, the nearest first."""
    found = [
        (distance if metric == "l2" else -distance, place)
        for place, (one, distance) in enumerate(zip(ids, distances, strict=True))
        if one >= 0
    ]
    return [place for _, place in sorted(found)]


def naive_meta_k_features(ids, distances, values, metric, log_p, ks=KS):
    plain = naive_features(ids, distances, values, metric, log_p)
    places = nearest_places(ids, distances, metric)
    if not places:
        return plain + [0.0] * (2 * len(ks))
    sets = [places[:k] for k in ks]
    return [
        *plain,
        *(distances[some[-1]] for some in sets),
        *(math.log(len({values[place] for place in some})) for some in sets),
    ]


def naive_shares(gate, features):
    """Computes the shares a_0, a_1, ... of one row."""
    one = {name: array.astype(np.float64) for name, array in gate.to_arrays().items()}
    scaled = np.clip((np.array(features) - one["mean"]) / one["scale"], -4.0, 4.0)
    inside = np.tanh(one["hidden"] @ scaled + one["hidden_bias"])
    said = np.exp(one["out"] @ inside + one["out_bias"])
    return said / said.sum()


def naive_vote(gate, ids, distances, values, metric, log_p, temperature):
    """Computes λ of one row and each neighbor's weight, which sums a_j p_kNN over the sets."""
    features = naive_meta_k_features(ids, distances, values, metric, log_p, gate.ks)
    shares = naive_shares(gate, features)
    places = nearest_places(ids, distances, metric)
    weights = [0.0] * len(ids)
    if not places:
        return 0.0, weights
    sign = -1.0 if metric == "l2" else 1.0
    for k, share in zip(gate.ks, shares[1:], strict=True):
        near = [sign * (distances[place] - distances[places[0]]) for place in places[:k]]
        votes = np.exp(np.array(near) / temperature)
        for place, vote in zip(places[:k], votes / votes.sum(), strict=True):
            weights[place] += share * vote
    return 1.0 - shares[0], [weight / (1.0 - shares[0]) for weight in weights]


def random_meta_k(metric="l2", ks=KS, units=4, seed=0, blind=()):
    """Makes a random gate for distances of about ten to fifty. It ignores the features `blind`."""
    rng = np.random.default_rng(seed)
    inputs, outputs = 6 + 2 * len(ks), 1 + len(ks)
    scale = np.full(inputs, 2.0)
    scale[[0, 1, *range(6, 6 + len(ks))]] = 20.0
    hidden = rng.normal(size=(units, inputs))
    hidden[:, list(blind)] = 0.0
    return MetaKGate(
        metric,
        ks,
        {
            "mean": rng.normal(size=inputs),
            "scale": scale * rng.uniform(0.7, 1.4, inputs),
            "hidden": hidden,
            "hidden_bias": rng.normal(size=units),
            "out": rng.normal(size=(outputs, units)),
            "out_bias": rng.normal(size=outputs),
        },
    )


def random_adaptive(metric="l2", units=4, seed=0, lmbda=0.0, share=0.0):
    """Makes a random gate, whose λ and s have these log-odds on average."""
    rng = np.random.default_rng(seed)
    inputs = len(FEATURES)
    return AdaptiveGate(
        metric,
        {
            "mean": np.zeros(inputs),
            "scale": np.ones(inputs),
            "hidden": rng.normal(size=(units, inputs)),
            "hidden_bias": rng.normal(size=units),
            "out": rng.normal(size=(2, units)),
            "out_bias": np.array([lmbda, share]),
        },
    )
