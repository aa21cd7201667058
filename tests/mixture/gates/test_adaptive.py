"""`AdaptiveGate`: its features and shares against plain loops, its file, and its fit."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import TEXTS
from gate_cases import neighbors_of, random_adaptive, rows_of_neighbors
from hypothesis import given
from hypothesis import strategies as st
from tuned import write_settings

from knn_logits import Datastore, KNNLogitsProcessor, build_datastore
from knn_logits.building.gate_fitting import (
    CORPUS,
    OWN_TEXT,
    PASSAGE,
    GateTokens,
    fit_adaptive_gate,
    quality,
)
from knn_logits.mixture.gates.adaptive import (
    FEATURES,
    AdaptiveGate,
    Ballots,
    GatedStore,
    gated_vote,
    shares_of,
)
from knn_logits.mixture.vote import Weighing, mix
from knn_logits.search.neighbors import Occurrences, joined, with_occurrences

LEAST = -20.0


def constant(knn, match, metric="l2", control=()):
    """A gate with the same λ and s everywhere."""
    arrays = random_adaptive().to_arrays()
    arrays["out"] = np.zeros_like(arrays["out"])
    stretched = [(share + 0.02) / 1.02 for share in (knn, match)]
    arrays["out_bias"] = np.array([math.log(p / (1 - p)) for p in stretched], np.float32)
    return AdaptiveGate(metric, arrays, control)


@st.composite
def cases(draw):
    """Rows of neighbors, each with what follows the longest verbatim match of its text."""
    metric, rows = draw(rows_of_neighbors())
    matches = []
    for _, _, _, log_p in rows:
        number = draw(st.integers(0, 4))
        values = [draw(st.integers(0, len(log_p) - 1)) for _ in range(number)]
        length = draw(st.integers(1, 40)) if number else 0
        matches.append((values, length, draw(st.floats(0, 60, width=32)) if number else 0.0))
    return metric, rows, matches


def occurrences_of(matches):
    width = max(len(values) for values, _, _ in matches)
    ids = torch.full((len(matches), width), -1)
    values, logs = torch.zeros_like(ids), torch.full((len(matches), width), -math.inf)
    for row, (tokens, _, _) in enumerate(matches):
        ids[row, : len(tokens)], values[row, : len(tokens)] = 3, torch.tensor(tokens).long()
        logs[row, : len(tokens)] = -math.log(max(1, len(tokens)))
    lengths = torch.tensor([length for _, length, _ in matches])
    rarity = torch.tensor([rarity for _, _, rarity in matches])
    counts = torch.tensor([len(tokens) for tokens, _, _ in matches])
    nothing = torch.zeros(len(matches))
    return Occurrences(ids, values, logs, lengths, counts, nothing, rarity, lengths / 50)


def asked(case, temperature=10.0):
    metric, rows, matches = case
    neighbors = replace(neighbors_of(rows, metric), occurrences=(occurrences_of(matches),))
    log_p_lm = torch.tensor([row[3] for row in rows])
    return neighbors, Weighing(temperature).log_weights(neighbors), log_p_lm


def share_by_token(values, weights, size):
    votes = [0.0] * size
    for value, weight in zip(values, weights, strict=True):
        votes[value] += weight
    return votes


def naive_features(row, match, weights, metric):
    """The features of one row by plain loops; favorites that are tied are the lowest tokens."""
    ids, distances, values, log_p = row
    near = [-d if metric == "l2" else d for d, id in zip(distances, ids, strict=True) if id >= 0]
    near.sort(reverse=True)
    knn = share_by_token(values, weights, len(log_p))
    tokens, length, rarity = match
    votes = share_by_token(tokens, [1 / len(tokens)] * len(tokens) if tokens else [], len(log_p))
    favorite, second = knn.index(max(knn)), votes.index(max(votes))
    below = [one - near[0] for one in near[1:16]]
    return [
        near[0] if near else 0.0,
        sum(below) / max(1, len(below)),
        max(knn),
        max(log_p[favorite], LEAST) if near else LEAST,
        max(log_p),
        math.log1p(length) if tokens else 0.0,
        math.sqrt(rarity) if tokens else 0.0,
        length / 50 if tokens else 0.0,
        max(votes),
        max(log_p[second], LEAST) if tokens else LEAST,
        knn[second] if tokens else 0.0,
    ]


@given(cases())
def test_features(case):
    metric, rows, matches = case
    neighbors, weights, log_p_lm = asked(case)
    got = Ballots.of(neighbors, weights, log_p_lm).features
    assert bool(got.isfinite().all())
    for row, match, weight, features in zip(rows, matches, weights, got, strict=True):
        tied = share_by_token(match[0], [1.0] * len(match[0]), len(row[3]))
        if tied.count(max(tied)) > 1 and match[0]:
            continue  # the order of tied favorites is not defined
        expected = naive_features(row, match, weight.exp().tolist(), metric)
        np.testing.assert_allclose(features.numpy(), expected, rtol=1e-3, atol=1e-3)


@given(cases(), st.integers(0, 99))
def test_shares_are_in_range_and_need_neighbors_or_a_match(case, seed):
    metric, rows, matches = case
    gate = random_adaptive(metric, seed=seed)
    lmbda, share = gate.shares(*asked(case))
    for one in (lmbda, share):
        assert bool(((one >= 0.0) & (one <= 0.999)).all())
    for row, match, a, b in zip(rows, matches, lmbda.tolist(), share.tolist(), strict=True):
        assert a == 0.0 or any(id >= 0 for id in row[0])
        assert b == 0.0 or match[0]


def test_a_gate_is_silent_where_the_model_ends_the_text():
    case = (
        "l2",
        [([3], [1.0], [1], [-0.1, -2.5]), ([3], [1.0], [1], [-2.5, -0.1])],
        [([], 0, 0.0)] * 2,
    )
    lmbda, _ = constant(0.5, 0.5, control=(0,)).shares(*asked(case))
    torch.testing.assert_close(lmbda, torch.tensor([0.0, 0.5]))


def test_a_small_share_is_none():
    logits = torch.tensor([-9.0, math.log(0.0196 / 0.9804) - 1e-3, 0.0, 40.0])
    assert shares_of(logits).tolist() == pytest.approx([0.0, 0.0, 0.49, 0.999])


SHARES = st.tuples(st.floats(0, 0.9), st.floats(0, 0.9))


@given(cases(), st.lists(SHARES, min_size=1, max_size=3))
def test_the_vote_of_gated_datastores(case, shares):
    """p = sum of r_j (s_j p_match + (1 - s_j) λ_j p_kNN) + Π (1 - t_j) p_LM, by plain loops."""
    metric, rows, matches = case
    neighbors, weights, log_p_lm = asked(case)
    stores = [
        GatedStore(constant(knn, match, metric), Weighing(10.0), None) for knn, match in shares
    ]
    found = joined([neighbors] * len(stores), -1)
    found = replace(found, occurrences=neighbors.occurrences * len(stores))
    votes, lmbdas = gated_vote(stores, found, log_p_lm)
    got = mix(log_p_lm, votes, with_occurrences(found).values, lmbdas).exp()
    for number, (row, (tokens, _, _)) in enumerate(zip(rows, matches, strict=True)):
        p_lm = [math.exp(one) for one in row[3]]
        # A token that the model is forbidden to choose gets no vote.
        votes = zip(row[2], weights[number].exp().tolist(), strict=True)
        allowed = [weight if row[3][value] >= -745 else 0.0 for value, weight in votes]
        kept = [token for token in tokens if row[3][token] >= -745]
        p_knn = share_by_token(row[2], allowed, len(p_lm))
        p_match = share_by_token(kept, [1.0] * len(kept), len(p_lm))
        by_knn, by_match, rest = 0.0, 0.0, 1.0
        for knn, match in shares:
            s = match if kept else 0.0
            by_match += s
            by_knn += (1 - s) * (knn if sum(p_knn) else 0.0)
            rest *= 1 - (s + (1 - s) * (knn if sum(p_knn) else 0.0))
        scale = (1 - rest) / ((by_knn + by_match) or 1.0)
        expected = [
            scale * (by_match * c / max(1, len(kept)) + by_knn * b / (sum(p_knn) or 1.0)) + rest * a
            for a, b, c in zip(p_lm, p_knn, p_match, strict=True)
        ]
        np.testing.assert_allclose(got[number].numpy(), expected, atol=3e-4)


def drawn(kind, number, seed, *, near, right_knn, right_match=0.0):
    """Tokens whose first feature tells whether the neighbors are right."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(number, len(FEATURES), generator=random) * 0.1
    features[:, 0] = near
    tokens = torch.tensor([[0, 1, 1]]).expand(number, -1)
    by_knn = torch.rand(number, generator=random) < right_knn
    target = torch.where(by_knn, 1, 0)
    p = torch.zeros(number, 3, 3)
    p[:, 0] = torch.tensor([0.8, 0.1, 0.1])
    p[:, 1:] = torch.tensor([0.2, 0.9, 0.9])
    p_target = p[torch.arange(number), torch.where(by_knn, 1, 0)]
    found = torch.tensor([[True, right_match > 0.0]]).expand(number, -1)
    text = torch.arange(number) // 50
    return GateTokens(
        features, tokens, found, p, target, p_target, torch.full((number,), kind), text
    )


def test_a_fit_follows_near_neighbors_and_leaves_the_models_own_text_alone():
    tokens = GateTokens.joined(
        [
            drawn(CORPUS, 800, 1, near=-1.0, right_knn=0.9),
            drawn(CORPUS, 800, 2, near=-9.0, right_knn=0.05),
            drawn(PASSAGE, 300, 3, near=0.0, right_knn=1.0, right_match=1.0),
            drawn(OWN_TEXT, 600, 4, near=-9.0, right_knn=0.0),
        ]
    )
    gate = fit_adaptive_gate(tokens, "l2")
    near, far = (gate.at(tokens.features[tokens.features[:, 0] == one])[:, 0] for one in (-1, -9))
    assert float(near.mean()) > 0.8
    assert float(far.mean()) < 0.1
    judged = quality(gate, tokens)
    assert judged.gain > 0.2
    assert judged.kept == 1.0
    assert judged.followed == 1.0
    # The model's own choices are compared with its own, whatever token follows.
    other = quality(gate, replace(tokens, target=torch.full_like(tokens.target, 5)))
    assert (other.kept, other.followed) == (1.0, 0.0)
    again = fit_adaptive_gate(tokens, "l2")
    assert torch.equal(again.at(tokens.features), gate.at(tokens.features))


def test_a_fit_finds_the_share_of_the_largest_likelihood():
    tokens = drawn(CORPUS, 4000, 1, near=-1.0, right_knn=0.5)
    shares = fit_adaptive_gate(tokens, "l2").at(tokens.features)[:, 0]
    # 0.5 ln(0.2 + 0.7 λ) + 0.5 ln(0.8 - 0.7 λ) is largest there.
    assert float(shares.mean()) == pytest.approx(3 / 7, abs=0.03)


def test_every_step_searches_the_index(model, store, ids):
    """With the gate, each generated token costs one search of one query a row."""
    with KNNLogitsProcessor(model, store, lmbda=constant(0.2, 0.2)) as knn:
        queries, search = [], knn.memory.retriever.search
        knn.memory.retriever.search = lambda states, texts=None: (
            queries.append(len(states)), search(states, texts))[1]  # fmt: skip
        model.generate(
            ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, logits_processor=[knn]
        )
    assert queries == [len(ids)] * 6


def test_a_datastore_with_nothing_near_changes_nothing(model, tokenizer, ids, tmp_path):
    """Each of several datastores has its own gate, k and temperature, in any order."""
    gates = {"near": constant(0.6, 0.3), "far": constant(0.0, 0.0), "none": None}
    stores = {}
    for k, (name, gate) in enumerate(gates.items(), 3):
        stores[name] = build_datastore(
            model, tokenizer, TEXTS[k:], tmp_path / name, k=k, temperature=float(k), calibrate=False
        )
        if gate is not None:
            write_settings(stores[name], k, 0.1, float(k), gate)
            stores[name] = Datastore(tmp_path / name)

    def log_p(*names, **settings):
        with KNNLogitsProcessor(model, [stores[name] for name in names], **settings) as knn:
            output = model.generate(
                ids, max_new_tokens=1, logits_processor=[knn],
                output_scores=True, return_dict_in_generate=True,
            )  # fmt: skip
        return output.scores[0].log_softmax(-1)

    alone = log_p("near")
    assert not torch.allclose(alone, log_p("far"), atol=1e-2)
    for names in (("near", "far"), ("far", "near")):
        torch.testing.assert_close(log_p(*names), alone, atol=1e-5, rtol=1e-5)
    # A datastore without a gate takes the first gate.
    torch.testing.assert_close(log_p("far", "none"), log_p("far"))
    assert not torch.allclose(log_p("none", "far"), log_p("none"), atol=1e-2)
