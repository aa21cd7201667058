"""Sums by document, the measures made of them, and the bootstrap."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knn_logits.cli.results_table import plain_table
from knn_logits.measure.results import Evaluation, Resampling, Tally, join, perplexity

tokens = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.floats(-30, 0),
        st.one_of(st.just(-math.inf), st.floats(-30, 0)),
        st.floats(-30, 0),
    ),
    min_size=1,
    max_size=40,
)


def tally_of(rows):
    columns = [np.array(column, dtype=float) for column in zip(*rows, strict=True)]
    tally = Tally()
    for part in np.array_split(np.arange(len(rows)), 3):
        if len(part):
            tally.add(columns[0][part].astype(np.int64), *(one[part] for one in columns[1:]))
    return tally


def result_of(tally, **settings):
    settings = {"with_knn": True, "samples": 200, "seed": 0, **settings}
    return tally.result("t", 7, 50, Resampling(**settings))


@given(tokens)
def test_measures_are_those_of_the_tokens(rows):
    result = result_of(tally_of(rows))
    _, lm, knn, mixed = (np.array(one, dtype=float) for one in zip(*rows, strict=True))
    assert result.tokens == len(rows)
    assert result.perplexity.lm == pytest.approx(np.exp(-lm.mean()))
    assert result.perplexity.interpolated == pytest.approx(np.exp(-mixed.mean()))
    assert (result.perplexity.knn is None) == bool(np.isinf(knn).any())
    assert result.bits_per_byte.lm == pytest.approx(-lm.sum() / 50 / math.log(2))


def test_intervals_hold_the_mean_and_shrink_with_more_documents():
    random = np.random.default_rng(0)

    def interval(documents):
        of = np.repeat(np.arange(documents), 20)
        level = random.normal(-3, 0.5, documents)[of]
        tally = Tally()
        tally.add(of, level, level, level + 0.5)
        return result_of(tally), level

    few, level = interval(10)
    low, high = few.interval["lm"]
    assert low < np.exp(-level.mean()) < high
    # The mixture is better by the same factor in each document, so its ratio has no spread.
    assert few.interval["ratio"] == pytest.approx((math.exp(-0.5),) * 2)
    many, _ = interval(1000)
    assert many.interval["lm"][1] - many.interval["lm"][0] < (high - low) / 3


def test_one_document_has_no_interval():
    tally = Tally()
    tally.add(np.array([3, 3]), *np.full((3, 2), -1.0))
    assert result_of(tally).interval is None
    assert result_of(tally_of([(0, -1, -1, -1), (1, -2, -2, -2)]), samples=0).interval is None


def test_perplexity_is_none_where_it_is_no_number():
    assert perplexity(2.0, 1.0) == pytest.approx(math.exp(2))
    assert perplexity(math.inf, 3) is None
    assert perplexity(math.nan, 3) is None
    assert perplexity(1e6, 3) is None
    assert perplexity(1.0, 0) is None


def test_the_result_is_valid_json_also_where_it_is_infinite():
    tally = Tally()
    tally.add(np.array([0, 1]), *np.full((3, 2), -math.inf))
    text = result_of(tally)
    evaluation = Evaluation([text], text, {"k": 3}, 2, 0, 0.5)
    content = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    assert content["perplexity"] == {"lm": None, "knn": None, "interpolated": None}
    assert content["tokens_per_second"] == 4.0
    assert content["texts"][0]["name"] == "t"
    assert "∞" in plain_table(evaluation)


def make_result(names=("a.txt",), documents=3):
    tallies, texts = [], []
    random = np.random.default_rng(0)
    how = Resampling(with_knn=True, samples=50, seed=0)
    for name in names:
        tally = Tally()
        lm = random.uniform(-8, -2, 60)
        knn = np.where(random.random(60) < 0.2, -np.inf, lm + 1)
        tally.add(np.arange(60) % documents, lm, knn, lm + 0.5)
        texts.append(tally.result(name, documents, 200, how))
        tallies.append(tally)
    total = join(tallies).result("total", documents * len(names), 200, how)
    settings = {"model": "org/model_name", "k": 8, "lmbda": 0.25}
    return Evaluation(texts, total, settings, 60, 0, 1.0)


def test_a_table_for_people():
    text = plain_table(make_result(("a.txt", "b|c.txt")))
    assert text.splitlines()[0].split()[:3] == ["text", "tokens", "model"]
    assert "total" in text
    assert "95% interval" in text
    assert "lmbda 0.25" in text
