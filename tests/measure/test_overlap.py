"""Runs of tokens that a text shares with a datastore, against a search in plain Python."""

import numpy as np
import pytest
from handmade import make_store
from hypothesis import given, settings
from hypothesis import strategies as st

from knn_logits import remove_documents
from knn_logits.measure import overlap
from knn_logits.measure.overlap import RUN, OverlapCheck

RANDOM = np.random.default_rng(5)
STORED = [RANDOM.integers(0, 30_000, length).tolist() for length in (200, 9, 60, 13, 400)]


def stored(folder, documents=STORED):
    entries = sum(map(len, documents)) - len(documents)
    keys = np.zeros((entries, 4), np.float16)
    return make_store(folder, documents, keys, vocabulary=30_000)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("overlap") / "s")


def check(store, documents, **settings):
    found = OverlapCheck([store], **settings)
    for number, tokens in enumerate(documents):
        found.add("text", number, np.array(tokens, np.int32))
    return found.result()


def runs(tokens):
    return [tuple(tokens[first : first + RUN]) for first in range(len(tokens) - RUN + 1)]


def plain(documents, stored):
    """The same by plain sets: tokens shared, and runs by document."""
    theirs = [set(runs(one)) for one in stored]
    shared = 0
    for tokens in documents:
        held = set()
        for first, run in enumerate(runs(tokens)):
            if any(run in one for one in theirs):
                held.update(range(first, first + RUN))
        shared += len(held)
    wanted = {run for tokens in documents for run in runs(tokens)}
    counts = {
        str(number): sum(run in wanted for run in runs(one)) for number, one in enumerate(stored)
    }
    return shared, {id: count for id, count in counts.items() if count}


def test_a_stored_text_is_found_whole(store):
    found = check(store, [STORED[0], STORED[4][100:150]])
    assert found.share == 1.0
    assert found.documents == (("0", 188), ("4", 38))
    assert found.notable
    assert found.held
    assert "100.0% of the text's tokens" in str(found)


def test_other_text_shares_nothing(store):
    found = check(store, [RANDOM.integers(0, 30_000, 500).tolist(), [], [1, 2]])
    assert (found.shared, found.tokens, found.documents) == (0, 502, ())
    assert not found.notable
    assert not found.held


@pytest.mark.parametrize("length", [RUN - 1, RUN, RUN + 1])
def test_runs_of_thirteen(store, length):
    text = [*RANDOM.integers(0, 30_000, 100).tolist(), *STORED[0][50 : 50 + length], 7]
    found = check(store, [text])
    assert found.shared == (length if length >= RUN else 0)


def test_a_part_that_is_stored_is_told_of(store):
    other = RANDOM.integers(0, 30_000, 400).tolist()
    found = check(store, [other, STORED[2]])
    assert found.notable
    assert not found.held
    assert check(store, [other, STORED[0]]).held


def test_a_run_across_documents_is_in_neither(store):
    assert check(store, [STORED[0][-6:] + STORED[1]]).shared == 0
    assert check(store, [STORED[0][:6], STORED[0][6:12]]).shared == 0


def test_removed_and_excluded_documents_take_no_part(tmp_path):
    store = stored(tmp_path / "s")
    assert check(store, [STORED[0], STORED[2]], exclude=["0"]).documents == (("2", 48),)
    less = remove_documents(store, ["2"])
    assert check(less, [STORED[0], STORED[2]]).documents == (("0", 188),)


def test_a_text_in_parts_is_found_as_whole(store, monkeypatch):
    documents = [STORED[0][:150], RANDOM.integers(0, 30_000, 40).tolist(), STORED[4][:90]]
    whole = check(store, documents)
    assert (whole.tokens, whole.shared) == (280, 240)
    monkeypatch.setattr(overlap, "_TOKENS_AT_ONCE", 64)
    found = OverlapCheck([store])
    for number, tokens in enumerate(documents):
        for first in range(0, len(tokens), 50):
            found.add("text", number, np.array(tokens[first : first + 50], np.int32))
    assert found.result() == whole


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.integers(0, 1), max_size=60), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=60), min_size=1, max_size=4),
)
def test_all_runs_are_those_of_a_plain_search(tmp_path_factory, documents, theirs):
    theirs = [[0, 1], *theirs]
    store = stored(tmp_path_factory.mktemp("plain") / "s", theirs)
    found = check(store, documents)
    shared, counts = plain(documents, theirs)
    assert (found.shared, dict(found.documents)) == (shared, counts)
