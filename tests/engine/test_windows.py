import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knn_logits.engine.windows import TextWindow, batches, plan, resolve
from knn_logits.errors import ConfigError
from knn_logits.settings.config import WindowConfig

lengths = st.lists(st.integers(1, 60), max_size=8)
sizes = st.integers(1, 20).flatmap(lambda one: st.tuples(st.just(one), st.integers(1, one)))


@given(lengths, sizes)
def test_each_token_but_a_contexts_first_is_predicted_once_and_in_order(tokens, size):
    window, stride = size
    *first, _ = itertools.accumulate(tokens, initial=0)
    contexts = [range(begin, begin + n) for begin, n in zip(first, tokens, strict=True)]
    predicted = []
    for one in plan(first, tokens, window, stride):
        assert 1 <= one.size <= window
        assert 0 <= one.skip < one.size
        assert one.entries == one.size - one.skip
        assert one.first_entry == len(predicted)
        context = next(context for context in contexts if one.start in context)
        assert one.start + one.size in context
        for before in range(one.skip + 1, one.size + 1):
            in_context = one.start + before - context.start
            assert min(in_context, window - stride + 1) <= before <= in_context
            predicted.append(one.start + before)
    assert predicted == [token for context in contexts for token in context[1:]]


def test_windows_of_one_document():
    # Ten tokens, nine of them predicted.
    assert list(plan([5], [10], 4, 2)) == [
        TextWindow(5, 4, 0, 0),
        TextWindow(7, 4, 2, 4),
        TextWindow(9, 4, 2, 6),
        TextWindow(11, 3, 2, 8),
    ]
    assert list(plan([0], [10], 9, 9)) == [TextWindow(0, 9, 0, 0)]
    assert list(plan([0, 1], [1, 1], 4, 2)) == []
    assert list(plan([], [], 4, 2)) == []


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), max_size=30), st.integers(1, 300)
)
def test_batches_hold_all_windows_by_size_within_the_budget(sizes, budget):
    """With the source of each, for an encoder-decoder model."""
    windows = [
        TextWindow(number, size, 0, number, number, np.zeros(source, np.int32) if source else None)
        for number, (size, source) in enumerate(sizes)
    ]
    groups = list(batches(windows, budget))
    together = [one for group in groups for one in group]
    assert sorted(one.start for one in together) == list(range(len(windows)))
    sizes_in_order = [one.size for one in together]
    assert sizes_in_order == sorted(sizes_in_order, reverse=True)
    for group in groups:
        longest = max(one.size for one in group) + max(one.source_size for one in group)
        # One window may be larger than the budget; it then goes alone.
        assert len(group) == 1 or len(group) * longest <= budget


def test_a_window_or_a_stride_beyond_the_model_is_refused():
    with pytest.raises(ConfigError, match=r"window 257 .* context of 256"):
        resolve(WindowConfig(window=257), 256)
    assert resolve(WindowConfig(window=256), 256) == (256, 128)
    with pytest.raises(ConfigError, match=r"stride 257 .* window 256"):
        resolve(WindowConfig(stride=257), 256)
