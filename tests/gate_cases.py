"""Neighbors for tests of gates, and plain re-derivations of gates that weigh each neighbor."""

import math

import numpy as np
import torch
from hypothesis import strategies as st

from knn_logits import LearnedGate, MetaKGate, RescorerGate
from knn_logits.mixture.gates.learned import FEATURES
from knn_logits.search.neighbors import Neighbors, powers_up_to

FAR = {"l2": math.inf, "ip": -math.inf, "cosine": -math.inf}
KS = (1, 2, 4, 8, 16)


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
    return Neighbors.from_distances(
        torch.tensor(ids, dtype=torch.int64).reshape(len(rows), -1),
        torch.tensor(distances, dtype=torch.float32).reshape(len(rows), -1),
        torch.tensor(values, dtype=torch.int64).reshape(len(rows), -1),
        metric,
    )


def naive_features(ids, distances, values, metric, log_p):
    """Computes the features of a `LearnedGate` for one row, from lists."""
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
    inside = np.tanh(
        one["hidden"] @ ((np.array(features) - one["mean"]) / one["scale"]) + one["hidden_bias"]
    )
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


def random_learned(metric="l2", units=3, seed=0):
    rng = np.random.default_rng(seed)
    number = len(FEATURES)
    return LearnedGate(
        metric,
        {
            "mean": rng.normal(size=number),
            "scale": rng.uniform(0.5, 2, number),
            "hidden": rng.normal(size=(units, number)),
            "hidden_bias": rng.normal(size=units),
            "out": rng.normal(size=units),
            "out_bias": rng.normal(size=1),
        },
    )


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


def naive_rescored(gate, ids, distances, values, metric, log_p, temperature):
    """Computes λ of one row and each neighbor's weight under a `RescorerGate`, in float64."""
    one = {name: array.astype(np.float64) for name, array in gate.to_arrays().items()}
    places = nearest_places(ids, distances, metric)[: gate.k]
    weights = [0.0] * len(ids)
    if not places:
        return 0.0, weights
    features = naive_meta_k_features(ids, distances, values, metric, log_p, gate.ks)
    row = (np.array(features) - one["mean"]) / one["scale"]
    said = one["out"] @ np.tanh(one["hidden"] @ row + one["hidden_bias"]) + one["out_bias"][0]
    sign = -1.0 if metric == "l2" else 1.0
    nats = np.array([sign * (distances[place] - distances[places[0]]) for place in places])
    nats = nats / temperature
    log_w = nats - math.log(sum(math.exp(each) for each in nats))
    context = one["near_row"] @ np.clip(row, -6, 6) + one["near_bias"]
    logits = []
    for rank, place in enumerate(places):
        same = [other for other, near in enumerate(places) if values[near] == values[place]]
        far = {"l2": distances[place], "cosine": 2 - 2 * distances[place]}
        known = [
            -nats[rank],
            math.log(max(far[metric], 1e-3)) if metric in far else distances[place],
            math.log(rank + 1),
            max(log_p[values[place]], -20.0),
            math.log(max(sum(math.exp(log_w[other]) for other in same), 1e-6)),
            math.log(len(same)),
        ]
        near = np.clip((np.array(known) - one["near_mean"]) / one["near_scale"], -6, 6)
        score = one["near_out"] @ np.tanh(one["near_hidden"] @ near + context)
        logits.append(one["sharpness"][0] * log_w[rank] + score)
    votes = np.exp(np.array(logits) - max(logits))
    for place, vote in zip(places, votes / votes.sum(), strict=True):
        weights[place] = vote
    return min(1 / (1 + math.exp(-said)), 0.999), weights


def random_rescorer(metric="l2", k=16, units=4, seed=0, blind=(), near_blind=()):
    """Makes a random gate for distances of about ten to fifty.

    It ignores the features `blind` of the row and `near_blind` of each neighbor.
    """
    row = random_meta_k(metric, powers_up_to(k), units, seed, blind).to_arrays()
    rng = np.random.default_rng(seed + 1)
    near_hidden, near_row = rng.normal(size=(units, 6)), rng.normal(size=row["hidden"].shape)
    near_hidden[:, list(near_blind)] = 0.0
    near_mean, near_scale = rng.normal(size=6), np.array([5.0, 20.0, 1.0, 4.0, 3.0, 1.0])
    if metric != "ip":
        # As in a fitted gate, the rounding of a distance of nearly 0 is far beyond what counts.
        near_mean[1], near_scale[1] = 3.0, 0.5
    near_row[:, list(blind)] = 0.0
    arrays = {name: row[name] for name in ("mean", "scale", "hidden", "hidden_bias")}
    return RescorerGate(
        metric,
        k,
        arrays
        | {
            "out": rng.normal(size=units),
            "out_bias": rng.normal(size=1),
            "near_mean": near_mean,
            "near_scale": near_scale * rng.uniform(0.7, 1.4, 6),
            "near_hidden": near_hidden,
            "near_row": near_row / 4,
            "near_bias": rng.normal(size=units),
            "near_out": rng.normal(size=units),
            "sharpness": rng.uniform(0.3, 1.2, 1),
        },
    )
