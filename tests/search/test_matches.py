"""`Matches`: the longest verbatim match against plain loops, its rarity, and ends of documents."""

import math
from collections import Counter

import pytest
import torch
from automaton import documents_of
from distances import prefixes_of
from handmade import make_store
from hypothesis import given, settings
from hypothesis import strategies as st

from knn_logits.index.opening import Indexes
from knn_logits.search.matches import Matches

END = 0


@pytest.fixture(scope="module")
def matches(store):
    return Matches.of_stores([store], Indexes(), end_token=END)


def naive(documents, text):
    """The longest suffix of a text with a token after it, or at an end of a document, and these."""
    best, followers = 0, Counter()
    for tokens in documents:
        for place in range(1, len(tokens) + 1):
            length = 0
            while (
                length < min(place, len(text)) and tokens[place - 1 - length] == text[-1 - length]
            ):
                length += 1
            at_end = place == len(tokens)
            if not length or (at_end and length < 4) or length < best:
                continue
            if length > best:
                best, followers = length, Counter()
            # Where a document goes on after as long a match, its end does not count.
            followers[END if at_end else tokens[place]] += 1 if not at_end else 1e-9
    inner = {token: n for token, n in followers.items() if n >= 1}
    return best, inner or dict.fromkeys(followers, 1)


@st.composite
def texts(draw, documents):
    tokens = draw(st.sampled_from(documents))
    first = draw(st.integers(0, len(tokens) - 2))
    last = draw(st.integers(first + 1, len(tokens)))
    before = draw(st.lists(st.integers(1, 383), max_size=3))
    return before + tokens[first:last]


@given(data=st.data())
@settings(max_examples=150)
def test_the_longest_match_and_what_follows(store, matches, data):
    documents = documents_of(store)
    drawn = data.draw(st.lists(texts(documents), min_size=1, max_size=4))
    found = matches.find(prefixes_of(drawn))
    counts = Counter(store.tokens.tolist())
    for row, text in enumerate(drawn):
        length, followers = naive(documents, text)
        assert int(found.lengths[row]) == length
        votes = Counter()
        for value, log in zip(
            found.values[row].tolist(), found.log_weights[row].tolist(), strict=True
        ):
            votes[value] += math.exp(log)
        total = sum(followers.values())
        for value, number in followers.items():
            assert votes[value] == pytest.approx(number / total, abs=1e-5)
        assert float(found.coverage[row]) == pytest.approx(length / len(text))
        rarity = -sum(
            math.log(counts[token] / len(store.tokens)) for token in text[len(text) - length :]
        )
        assert float(found.rarity[row]) == pytest.approx(rarity, rel=1e-4, abs=1e-4)


def test_the_end_of_a_document_is_an_entry_with_the_end_token(store, matches):
    document = documents_of(store)[2]
    found = matches.find(prefixes_of([document, document[:-1]]))
    first, second = (set(found.values[row][found.ids[row] >= 0].tolist()) for row in (0, 1))
    assert first == {END}
    assert second == {document[-1]}
    entry = int(found.ids[0][found.ids[0] >= 0][0])
    assert int(store.values[entry]) == document[-1]


def test_a_suffix_that_occurs_too_often_is_no_match_and_gives_way_to_none(tmp_path):
    often = [7, *([1, 2, 3, 4, 5, 6] * 9)]
    ending = [8, 1, 2, 3, 4, 5]
    stores = [
        make_store(tmp_path / "a", [often, ending]),
        make_store(tmp_path / "b", [[9, 4, 5, 8]]),
    ]
    asked = prefixes_of([[9, 1, 2, 3, 4, 5], [9, 4, 5]])
    for most, lengths in ((None, [5, 3]), (8, [0, 3])):
        found = Matches.of_stores(stores, Indexes(), end_token=END, most=most)
        got = found.find(asked)
        assert got.lengths.tolist() == lengths
        assert bool((got.ids[0] >= 0).any()) == (most is None)
        assert float(got.coverage[0]) == pytest.approx(lengths[0] / 6)


def test_padding_before_a_text_changes_nothing(matches, store):
    text = documents_of(store)[2][3:9]
    alone = matches.find(prefixes_of([text]))
    padded = matches.find(prefixes_of([[-1, -1, -1, *text]]))
    for name in ("lengths", "counts", "rarity", "coverage"):
        assert torch.equal(getattr(padded, name), getattr(alone, name)), name
