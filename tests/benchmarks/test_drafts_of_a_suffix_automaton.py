"""The rule of the suffix automaton in the benchmark of drafts, beside a plain search."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

FOLDER = Path(__file__).parents[2] / "benchmarks"
TOKENS = st.lists(st.integers(0, 2), min_size=2, max_size=24)


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("spec_bench")


def first_match(text, corpus):
    """Tries every suffix, the longest first."""
    for length in range(len(text), 0, -1):
        for start in range(len(corpus) - length + 1):
            if corpus[start : start + length] == text[-length:]:
                return length, start + length
    return 0, 0


@given(TOKENS, TOKENS)
def test_the_longest_match_is_that_of_a_plain_search(script, text, corpus):
    arrays = np.asarray(text), np.asarray(corpus)
    assert script.longest_match(*arrays) == first_match(text, corpus)
    assert script.longest_match(arrays[0], arrays[0][:-1]) == first_match(text, text[:-1])


def test_four_tokens_are_drafted_for_each_that_matches(script):
    corpus = [7, 1, 2, 3, *range(20, 90)]
    draft = script.suffix_automaton(np.asarray(corpus))
    assert draft([5, 3], 100) == corpus[4:8]
    assert draft([5, 2, 3], 100) == corpus[4:12]
    assert draft([5, 2, 3], 5) == corpus[4:9]
    assert draft(corpus[:16], 100) == corpus[16:55]  # 39 at most
    assert draft([5, 6], 100) == []
    # The text goes first where both match alike.
    assert draft([3, 8, 9, 5, 3], 100) == [8, 9, 5, 3]
