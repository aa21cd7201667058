"""Texts as windows, and the tokens that are counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knn_logits.corpus.documents import Document
from knn_logits.engine import tokens as text_tokens
from knn_logits.engine.tokens import special_tokens, token_blocks, tokenize
from knn_logits.engine.windows import plan, stream
from knn_logits.measure.text_pass import Text

lengths = st.lists(st.integers(1, 30), max_size=6)
sizes = st.integers(1, 12).flatmap(lambda one: st.tuples(st.just(one), st.integers(1, one)))


@given(st.integers(0, 60), sizes, st.lists(st.integers(1, 20), max_size=8))
def test_streamed_windows_are_the_planned_ones(length, size, cuts):
    tokens = np.arange(length, dtype=np.int32)
    ends = np.minimum(np.cumsum([0, *cuts]), length)
    blocks = [tokens[a:b] for a, b in zip(ends, [*ends[1:], length], strict=True)]
    found = list(stream(blocks, *size, first=100))
    expected = list(plan([0], [length], *size)) if length else []
    assert [(one.first - 100, one.size, one.skip) for one in found] == [
        (one.start, one.size, one.skip) for one in expected
    ]
    for one in found:
        assert one.tokens.tolist() == list(range(one.first - 100, one.first - 100 + one.size + 1))


@pytest.mark.parametrize("concatenate", [False, True])
def test_documents_and_tokens(tokenizer, concatenate):
    documents = ["The harbour crane", Document("Queen Maira, 1312\nœ", "id"), "x"]
    text = Text(documents, tokenizer, 4, 2, concatenate=concatenate)
    pieces = list(text.pieces())
    ids = [tokenizer(one if isinstance(one, str) else one.text)["input_ids"] for one in documents]
    assert len(text.starts) == 3
    assert text.tokens == sum(map(len, ids))
    targets = {
        piece.first + place: int(piece.tokens[place])
        for piece in pieces
        for place in range(piece.skip + 1, len(piece.tokens))
    }
    flat = [one for row in ids for one in row]
    starts = np.cumsum([0, *map(len, ids)])[:-1].tolist()
    unscored = {0} if concatenate else set(starts)
    assert targets == {place: one for place, one in enumerate(flat) if place not in unscored}
    numbers = text.documents_at(np.arange(len(flat))).tolist()
    assert numbers == [number for number, row in enumerate(ids) for _ in row]


def test_blocks_are_what_tokenize_gives(tokenizer, monkeypatch):
    monkeypatch.setattr(text_tokens, "_PART", 40)
    monkeypatch.setattr(text_tokens, "_BLOCK", 40)
    text = "The harbour crane lifts twelve crates\nan hour. " * 9 + "\nEnd"
    ((_, whole, _),) = tokenize(tokenizer, [Document(text, "d")])
    blocks = list(token_blocks(tokenizer, text, special_tokens(tokenizer)))
    assert len(blocks) > 3
    assert np.concatenate(blocks).tolist() == whole
