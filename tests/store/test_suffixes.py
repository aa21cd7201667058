"""The suffix order against a plain sort of all texts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from knn_logits.store.suffixes import suffix_order

# Few different tokens, so that texts share long ends; equal documents as well.
DOCUMENTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=6)


def laid_out(documents):
    tokens = np.array([token for one in documents for token in one], np.int32)
    return tokens, np.cumsum([0, *(len(one) for one in documents[:-1])])


def by_the_book(documents):
    """Every token but a document's first, by the text before it, read backwards."""
    found, start = [], 0
    for one in documents:
        found += [(one[:place][::-1], start + place) for place in range(1, len(one))]
        start += len(one)
    return [place for _, place in sorted(found)]


@given(DOCUMENTS, st.integers(1, 3))
def test_order(documents, times):
    documents = documents * times
    tokens, first = laid_out(documents)
    order = suffix_order(tokens, first)
    assert order.dtype == np.uint32
    assert order.tolist() == by_the_book(documents)
