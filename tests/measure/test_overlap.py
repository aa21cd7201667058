"""Runs of tokens that a text shares with a datastore, against a search in plain Python."""

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import TEXTS
from handmade import make_store
from hypothesis import given, settings
from hypothesis import strategies as st

from knn_logits import remove_documents
from knn_logits.measure import bench
from knn_logits.measure.bench import RUN_TOKENS as RUN
from knn_logits.measure.bench import held_share

RANDOM = np.random.default_rng(5)
STORED = [RANDOM.integers(0, 30_000, length).tolist() for length in (200, 9, 60, 13, 400)]


def stored(folder, documents=STORED):
    entries = sum(map(len, documents)) - len(documents)
    keys = np.zeros((entries, 4), np.float16)
    return make_store(folder, documents, keys, vocabulary=30_000)


@pytest.fixture(scope="module")
def random_store(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("overlap") / "s")


def check(store, documents, part=1 << 30, **settings):
    """The share of documents, each of which is read in parts."""
    read = [
        np.array(tokens, np.int32)
        for one in documents
        for tokens in ([-1], *(one[first : first + part] for first in range(0, len(one), part)))
    ]
    text = SimpleNamespace(read=read, tokens=sum(map(len, documents)))
    return held_share(text, [store], **settings)


def runs(tokens):
    return [tuple(tokens[first : first + RUN]) for first in range(len(tokens) - RUN + 1)]


def plain(documents, stored):
    """The same by plain sets."""
    theirs = {run for one in stored for run in runs(one)}
    shared = 0
    for tokens in documents:
        held = set()
        for first, run in enumerate(runs(tokens)):
            if run in theirs:
                held.update(range(first, first + RUN))
        shared += len(held)
    return shared / max(1, sum(map(len, documents)))


def test_a_stored_text_is_found_whole(random_store):
    assert check(random_store, [STORED[0], STORED[4][100:150]]) == 1.0
    assert check(random_store, [RANDOM.integers(0, 30_000, 500).tolist(), [], [1, 2]]) == 0.0


@pytest.mark.parametrize("length", [RUN - 1, RUN, RUN + 1])
def test_runs_of_thirteen(random_store, length):
    text = [*RANDOM.integers(0, 30_000, 100).tolist(), *STORED[0][50 : 50 + length], 7]
    assert check(random_store, [text]) == (length / len(text) if length >= RUN else 0)


def test_a_run_across_documents_is_in_neither(random_store):
    assert check(random_store, [STORED[0][-6:] + STORED[1]]) == 0
    assert check(random_store, [STORED[0][:6], STORED[0][6:12]]) == 0


def test_removed_and_excluded_documents_take_no_part(tmp_path):
    store = stored(tmp_path / "s")
    assert check(store, [STORED[0], STORED[2]], exclude=["0"]) == 60 / 260
    assert check(remove_documents(store, ["2"]), [STORED[0], STORED[2]]) == 200 / 260


def test_a_text_in_parts_is_found_as_whole(random_store, monkeypatch):
    documents = [STORED[0][:150], RANDOM.integers(0, 30_000, 40).tolist(), STORED[4][:90]]
    monkeypatch.setattr(bench, "_TOKENS_AT_ONCE", 64)
    assert check(random_store, documents, part=50) == 240 / 280


def test_eval_warns_of_a_text_that_is_held(evaluate, store, caplog):
    assert evaluate(store, TEXTS).overlap == 1.0
    assert "results on other text will be worse" in caplog.text
    caplog.clear()
    assert evaluate(store, TEXTS, allow_overlap=True).overlap is None
    assert not caplog.text
    assert evaluate(store, TEXTS[:1], exclude=["0"]).overlap < 0.5
    assert evaluate(None, TEXTS).overlap is None


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.integers(0, 1), max_size=60), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=60), min_size=1, max_size=4),
)
def test_all_runs_are_those_of_a_plain_search(tmp_path_factory, documents, theirs):
    theirs = [[0, 1], *theirs]
    plain_store = stored(tmp_path_factory.mktemp("plain") / "s", theirs)
    assert check(plain_store, documents) == plain(documents, theirs)
