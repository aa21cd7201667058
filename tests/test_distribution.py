import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from knn_logits.distribution import (
    drop_impossible,
    equivalent_temperature,
    influences,
    log_p_knn_of,
    log_weights,
    mix,
    mix_one,
)
from knn_logits.neighbors import Neighbors

INF = math.inf
FAR = {"l2": INF, "ip": -INF, "cosine": -INF}


# kNN-LM once more, from the papers' equations, in float64 and with a dictionary of votes.


def paper_weights(ids, distances, metric, temperature):
    """w_i of one row, 0 for padding."""
    sign = -1.0 if metric == "l2" else 1.0
    found = [sign * d / temperature for one, d in zip(ids, distances, strict=True) if one >= 0]
    peak = max(found, default=0.0)
    total = sum(math.exp(logit - peak) for logit in found)
    return [
        math.exp(sign * d / temperature - peak) / total if one >= 0 else 0.0
        for one, d in zip(ids, distances, strict=True)
    ]


def paper_votes(weights, values):
    """p_kNN of one row: token -> sum of the weights of its neighbors."""
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
    return Neighbors(
        torch.tensor(ids, dtype=torch.int64),
        torch.tensor(distances, dtype=torch.float32),
        torch.tensor(values, dtype=torch.int64),
        **settings,
    )


@st.composite
def cases(draw, metrics=("l2", "ip", "cosine"), rows=(1, 4), forbidden=False):
    """A vocabulary, model scores, and neighbors of a few rows, padding last."""
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
    neighbors = make(row["ids"], row["distances"], row["values"])
    log_p_lm = torch.log_softmax(torch.tensor(row["scores"]), dim=-1)
    temperature = draw(st.sampled_from([0.5, 1.0, 3.0, 10.0, 250.0]))
    lmbda = draw(st.one_of(st.sampled_from([0.0, 1.0, 0.25]), st.floats(0, 1)))
    return metric, neighbors, log_p_lm, temperature, lmbda


def mixture(neighbors, log_p_lm, metric, temperature, lmbda):
    weights = log_weights(neighbors, metric, temperature)
    votes = drop_impossible(weights, neighbors.values, log_p_lm)
    return mix(log_p_lm, votes, neighbors.values, lmbda)


def same_bits(left, right):
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


@given(cases())
def test_weights_are_those_of_the_papers(case):
    metric, neighbors, _, temperature, _ = case
    found = log_weights(neighbors, metric, temperature).exp()
    for row in range(neighbors.rows):
        expected = paper_weights(
            neighbors.ids[row].tolist(), neighbors.distances[row].tolist(), metric, temperature
        )
        np.testing.assert_allclose(found[row].numpy(), expected, rtol=2e-5, atol=1e-7)


@given(cases())
def test_weights_sum_to_1_or_there_are_none(case):
    metric, neighbors, _, temperature, _ = case
    weights = log_weights(neighbors, metric, temperature)
    assert not weights.isnan().any()
    assert (weights[~neighbors.mask] == -INF).all()
    sums = weights.exp().sum(-1)
    for total, any_found in zip(sums, neighbors.mask.any(-1), strict=True):
        assert float(total) == pytest.approx(1.0 if any_found else 0.0, abs=1e-5)


@given(cases())
def test_the_mixture_is_that_of_the_papers(case):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    found = mixture(neighbors, log_p_lm, metric, temperature, lmbda).exp()
    for row in range(neighbors.rows):
        ids, distances = neighbors.ids[row].tolist(), neighbors.distances[row].tolist()
        votes = paper_votes(
            paper_weights(ids, distances, metric, temperature), neighbors.values[row].tolist()
        )
        p_lm = np.exp(log_p_lm[row].double().numpy())
        expected = paper_mixture(p_lm, votes, lmbda)
        np.testing.assert_allclose(found[row].numpy(), expected, rtol=5e-5, atol=1e-7)


@given(cases())
def test_the_mixture_sums_to_1_and_is_finite(case):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    found = mixture(neighbors, log_p_lm, metric, temperature, lmbda)
    assert not found.isnan().any()
    assert (found <= 1e-5).all()
    np.testing.assert_allclose(found.double().exp().sum(-1).numpy(), 1.0, atol=1e-5)
    if lmbda < 1.0:
        assert found.isfinite().all()


@given(cases(forbidden=True))
def test_forbidden_tokens_stay_forbidden_and_their_vote_goes_to_the_others(case):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    found = mixture(neighbors, log_p_lm, metric, temperature, lmbda)
    assert not found.isnan().any()
    assert (found[log_p_lm == -INF] == -INF).all()
    np.testing.assert_allclose(found.double().exp().sum(-1).numpy(), 1.0, atol=1e-5)
    for row in range(neighbors.rows):
        ids, distances = neighbors.ids[row].tolist(), neighbors.distances[row].tolist()
        allowed = [
            one if log_p_lm[row, value] > -INF else -1
            for one, value in zip(ids, neighbors.values[row].tolist(), strict=True)
        ]
        votes = paper_votes(
            paper_weights(allowed, distances, metric, temperature), neighbors.values[row].tolist()
        )
        expected = paper_mixture(np.exp(log_p_lm[row].double().numpy()), votes, lmbda)
        np.testing.assert_allclose(found[row].exp().numpy(), expected, rtol=5e-4, atol=1e-6)
        if all(one < 0 for one in allowed):
            assert same_bits(found[row], log_p_lm[row])


def test_a_vote_of_vanishing_weight_counts_once_all_others_are_forbidden():
    neighbors = make([[0, 1]], [[0.0, 5000.0]], [[1, 2]])
    log_p_lm = torch.log_softmax(torch.tensor([[0.0, -INF, 0.0]]), dim=-1)
    found = mixture(neighbors, log_p_lm, "l2", 1.0, 0.5).exp()
    np.testing.assert_allclose(found.numpy(), [[0.25, 0.0, 0.75]], atol=1e-6)


@given(cases(), st.data())
def test_a_row_without_neighbors_is_exactly_the_models(case, data):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    row = data.draw(st.integers(0, neighbors.rows - 1))
    ids, distances = neighbors.ids.clone(), neighbors.distances.clone()
    ids[row], distances[row] = -1, FAR[metric]
    emptied = Neighbors(ids, distances, neighbors.values)
    for share in (lmbda, torch.full((neighbors.rows,), lmbda)):
        found = mixture(emptied, log_p_lm, metric, temperature, share)
        assert same_bits(found[row], log_p_lm[row])


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("lmbda", [0.0, 0.3, 1.0, torch.tensor([0.0, 1.0])])
def test_all_masked_and_no_columns(metric, lmbda):
    log_p_lm = torch.log_softmax(torch.tensor([[1.0, -2.0, 0.5], [0.0, -INF, 3.0]]), dim=-1)
    masked = make([[-1, -1]] * 2, [[FAR[metric]] * 2] * 2, [[0, 1]] * 2)
    for neighbors in (masked, Neighbors.nothing(2)):
        weights = log_weights(neighbors, metric, 10.0)
        assert weights.shape == neighbors.ids.shape
        assert (weights == -INF).all()
        assert same_bits(mixture(neighbors, log_p_lm, metric, 10.0, lmbda), log_p_lm)
        chosen = torch.tensor([0, 2])
        assert (log_p_knn_of(weights, neighbors.values, chosen) == -INF).all()
        parts = influences(
            weights, neighbors.values, chosen, log_p_lm[[0, 1], chosen], torch.zeros(2)
        )
        assert parts.shape == weights.shape
        assert not parts.any()


@given(cases())
def test_lmbda_0_is_the_model_and_lmbda_1_is_the_vote(case):
    metric, neighbors, log_p_lm, temperature, _ = case
    zero = mixture(neighbors, log_p_lm, metric, temperature, 0.0)
    assert torch.equal(zero, log_p_lm)
    one = mixture(neighbors, log_p_lm, metric, temperature, 1.0)
    for row in range(neighbors.rows):
        if neighbors.mask[row].any():
            voted = set(neighbors.values[row][neighbors.mask[row]].tolist())
            finite = set(one[row].isfinite().nonzero().view(-1).tolist())
            assert finite <= voted
        else:
            assert torch.equal(one[row], log_p_lm[row])


@given(cases(), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_one_lmbda_a_row_is_that_lmbda_for_each_row(case, shares):
    metric, neighbors, log_p_lm, temperature, _ = case
    shares = torch.tensor(shares[: neighbors.rows])
    together = mixture(neighbors, log_p_lm, metric, temperature, shares)
    for row, share in enumerate(shares.tolist()):
        part = slice(row, row + 1)
        alone = mixture(neighbors[part], log_p_lm[part], metric, temperature, share)
        torch.testing.assert_close(together[part], alone, rtol=1e-5, atol=1e-6)


def test_duplicate_tokens_add_up():
    # Weights 1/2, 1/4, 1/4: the distances are 0 and log 2.
    far = math.log(2.0)
    neighbors = make([[3, 4, 5]], [[0.0, far, far]], [[2, 2, 0]])
    weights = log_weights(neighbors, "l2", 1.0)
    np.testing.assert_allclose(weights.exp().numpy(), [[0.5, 0.25, 0.25]], rtol=1e-6)
    log_p_lm = torch.tensor([[0.25, 0.25, 0.5]]).log()
    found = mix(log_p_lm, weights, neighbors.values, 0.4).exp()
    np.testing.assert_allclose(found.numpy(), [[0.25, 0.15, 0.6]], rtol=1e-6)
    chosen = torch.tensor([2])
    np.testing.assert_allclose(
        log_p_knn_of(weights, neighbors.values, chosen).exp().numpy(), [0.75], rtol=1e-6
    )
    np.testing.assert_allclose(
        influences(
            weights, neighbors.values, chosen, found.log()[:, 2], torch.tensor([0.4])
        ).numpy(),
        [[0.4 * 0.5 / 0.6, 0.4 * 0.25 / 0.6, 0.0]],
        rtol=1e-6,
    )


def test_a_similarity_is_near_when_large():
    neighbors = make([[0, 1]], [[1.0, 3.0]], [[0, 1]])
    near_1 = log_weights(neighbors, "ip", 2.0).exp()
    np.testing.assert_allclose(near_1[0, 1].numpy(), 1 / (1 + math.exp(-1)), rtol=1e-6)
    near_0 = log_weights(neighbors, "l2", 2.0).exp()
    np.testing.assert_allclose(near_0[0, 0].numpy(), 1 / (1 + math.exp(-1)), rtol=1e-6)


@pytest.mark.parametrize("every_row", [False, True])
@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-30, 1.0, 1e46, 1e300])
@pytest.mark.parametrize(
    "distances",
    [[0.0, 0.0], [0.0, 1e-38], [1e38, 2e38], [3e38, 3e38], [1e5, 100000.0078125], [1e-45, 1.0]],
)
def test_extreme_distances_and_temperatures(every_row, metric, temperature, distances):
    neighbors = make([[0, 1]], [distances], [[0, 1]], every_row=every_row)
    found = log_weights(neighbors, metric, temperature)
    assert not found.isnan().any()
    assert float(found.exp().sum()) == pytest.approx(1.0, abs=1e-6)
    one, other = neighbors.distances[0].double().tolist()
    gap = (other - one) if metric == "l2" else (one - other)
    # A temperature beyond the normal floats acts as the nearest of them.
    tiny = torch.finfo(torch.float32).tiny
    expected = -np.logaddexp(0.0, -gap / min(max(temperature, tiny), 1 / tiny))
    assert float(found[0, 0].exp()) == pytest.approx(math.exp(expected), abs=1e-5)
    mixed = mix(torch.tensor([[0.5, 0.25, 0.25]]).log(), found, neighbors.values, 0.5)
    assert not mixed.isnan().any()
    assert float(mixed.exp().sum()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("temperature", [1e-300, 1e-46, 1e46, 1e300])
@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_padding_has_no_weight_at_any_temperature(metric, temperature):
    neighbors = make([[0, -1], [-1, -1]], [[2.0, FAR[metric]], [FAR[metric]] * 2], [[0, 0]] * 2)
    found = log_weights(neighbors, metric, temperature)
    assert found.tolist() == [[0.0, -INF], [-INF, -INF]]


@given(
    st.lists(st.floats(0, 9000, width=32), min_size=1, max_size=5),
    st.lists(st.floats(-9000, 0, width=32), min_size=3, max_size=3),
    st.floats(1e-6, 1 - 1e-6),
)
def test_tiny_probabilities_stay_finite(distances, scores, lmbda):
    # Each token's probability may be far below what exp() can show: only logs carry it.
    values = [number % 4 for number in range(len(distances))]
    neighbors = make([list(range(len(distances)))], [distances], [values])
    log_p_lm = torch.log_softmax(torch.tensor([[0.0, *scores]]), dim=-1)
    weights = log_weights(neighbors, "l2", 1.0)
    found = mix(log_p_lm, weights, neighbors.values, lmbda)[0].double().numpy()
    nearest = min(distances)
    logits = np.array([nearest - one for one in distances])
    log_w = logits - np.logaddexp.reduce(logits)
    for token in range(4):
        model_side = float(log_p_lm[0, token]) + math.log1p(-lmbda)
        voted = [one for one, value in zip(log_w, values, strict=True) if value == token]
        expected = (
            np.logaddexp(model_side, np.logaddexp.reduce(voted) + math.log(lmbda))
            if (voted)
            else model_side
        )
        if expected > -1e4:
            assert found[token] == pytest.approx(expected, rel=1e-5, abs=1e-4)


@given(cases(), st.data())
def test_influences_and_the_models_share_sum_to_1(case, data):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    neighbors = Neighbors(neighbors.ids, neighbors.distances.double(), neighbors.values)
    log_p_lm = torch.log_softmax(log_p_lm.double(), dim=-1)
    weights = log_weights(neighbors, metric, temperature)
    mixed = mix(log_p_lm, weights, neighbors.values, lmbda)
    rows = torch.arange(neighbors.rows)
    vocabulary = log_p_lm.shape[1]
    chosen = torch.tensor([data.draw(st.integers(0, vocabulary - 1)) for _ in rows])
    log_p = mixed[rows, chosen]
    assume(bool(log_p.isfinite().all()))
    share = lmbda * neighbors.mask.any(-1).double()
    parts = influences(weights, neighbors.values, chosen, log_p, share)
    rest = (log_p_lm[rows, chosen] + torch.log1p(-share) - log_p).exp()
    assert not parts.isnan().any()
    assert (parts >= 0).all()
    assert not parts[neighbors.values != chosen[:, None]].any()
    np.testing.assert_allclose((parts.sum(-1) + rest).numpy(), 1.0, atol=1e-6)


@given(cases())
def test_nothing_given_is_changed(case):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    share = torch.full((neighbors.rows,), lmbda)
    weights = log_weights(neighbors, metric, temperature)
    given_tensors = [neighbors.ids, neighbors.distances, neighbors.values, log_p_lm, share, weights]
    before = [one.clone() for one in given_tensors]
    log_weights(neighbors, metric, temperature)
    drop_impossible(weights, neighbors.values, log_p_lm)
    mix(log_p_lm, weights, neighbors.values, lmbda)
    mix(log_p_lm, weights, neighbors.values, share)
    if neighbors.mask.any(-1).all():
        sure = Neighbors(neighbors.ids, neighbors.distances, neighbors.values, every_row=True)
        log_weights(sure, metric, temperature)
        mix(log_p_lm, weights, neighbors.values, lmbda, every_row=True)
    chosen = torch.zeros(neighbors.rows, dtype=torch.int64)
    one = log_p_knn_of(weights, neighbors.values, chosen)
    mix_one(log_p_lm[:, 0], one, share)
    influences(weights, neighbors.values, chosen, log_p_lm[:, 0], share)
    for now, then in zip(given_tensors, before, strict=True):
        assert torch.equal(now, then)


@given(cases())
def test_float64_stays_float64_and_is_as_precise(case):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    neighbors = Neighbors(neighbors.ids, neighbors.distances.double(), neighbors.values)
    log_p_lm = torch.log_softmax(log_p_lm.double(), dim=-1)
    weights = log_weights(neighbors, metric, temperature)
    votes = drop_impossible(weights, neighbors.values, log_p_lm)
    mixed = mix(log_p_lm, votes, neighbors.values, lmbda)
    assert weights.dtype == votes.dtype == mixed.dtype == torch.float64
    for row in range(neighbors.rows):
        ids, distances = neighbors.ids[row].tolist(), neighbors.distances[row].tolist()
        expected = paper_mixture(
            log_p_lm[row].exp().tolist(),
            paper_votes(
                paper_weights(ids, distances, metric, temperature), neighbors.values[row].tolist()
            ),
            lmbda,
        )
        np.testing.assert_allclose(mixed[row].exp().numpy(), expected, rtol=1e-11, atol=1e-14)


@given(cases())
def test_the_mixture_of_one_token_is_that_of_all(case):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    weights = log_weights(neighbors, metric, temperature)
    mixed = mix(log_p_lm, weights, neighbors.values, lmbda)
    # In float64, since a float32 cannot tell 1 - lmbda from 0 where lmbda is nearly 1.
    share = torch.tensor(lmbda, dtype=torch.float64) * neighbors.mask.any(-1)
    for token in range(log_p_lm.shape[1]):
        chosen = torch.full((neighbors.rows,), token)
        log_p_knn = log_p_knn_of(weights.double(), neighbors.values, chosen)
        one = mix_one(log_p_lm[:, token].double(), log_p_knn, share)
        torch.testing.assert_close(one, mixed[:, token].double(), rtol=1e-5, atol=2e-6)


@given(cases())
def test_knowing_that_every_row_has_neighbors_changes_nothing(case):
    metric, neighbors, log_p_lm, temperature, lmbda = case
    rows = neighbors.mask.any(-1)
    assume(bool(rows.any()))
    neighbors, log_p_lm = neighbors[rows], log_p_lm[rows]
    sure = Neighbors(neighbors.ids, neighbors.distances, neighbors.values, every_row=True)
    slow, fast = (log_weights(one, metric, temperature) for one in (neighbors, sure))
    torch.testing.assert_close(fast, slow, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        mix(log_p_lm, slow, neighbors.values, lmbda, every_row=True),
        mix(log_p_lm, slow, neighbors.values, lmbda),
        rtol=1e-6,
        atol=1e-6,
    )


def test_votes_are_taken_only_where_a_token_is_forbidden():
    neighbors = make([[0, 1], [2, 3]], [[0.0, 1.0]] * 2, [[0, 1], [0, 1]])
    log_p_lm = torch.log_softmax(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=-1)
    weights = log_weights(neighbors, "l2", 1.0)
    assert drop_impossible(weights, neighbors.values, log_p_lm) is weights
    log_p_lm[1] = torch.tensor([-INF, 0.0])
    found = drop_impossible(weights, neighbors.values, log_p_lm)
    torch.testing.assert_close(found[0], weights[0])
    assert found[1].tolist() == [-INF, 0.0]


@given(st.integers(0, 10_000), st.sampled_from(["l2", "ip", "cosine"]), st.floats(0.5, 50.0))
def test_equivalent_temperatures_give_equal_weights_at_equal_lengths(seed, metric, temperature):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((9, 6))
    vectors *= 3.0 / np.linalg.norm(vectors, axis=-1, keepdims=True)
    query, keys = vectors[0], vectors[1:]
    distance = {
        "l2": ((keys - query) ** 2).sum(-1),
        "ip": keys @ query,
        "cosine": keys @ query / 9.0,
    }

    def weights(name, tau):
        scores = (-1 if name == "l2" else 1) * distance[name] / tau
        return np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()

    other = equivalent_temperature(temperature, "l2", metric, mean_square=9.0)
    np.testing.assert_allclose(weights("l2", temperature), weights(metric, other), rtol=1e-9)
    back = equivalent_temperature(other, metric, "l2", mean_square=9.0)
    assert back == pytest.approx(temperature)
