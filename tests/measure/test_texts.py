"""Texts as windows, and the words and bytes that are counted."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from knn_logits.corpus.documents import Document
from knn_logits.engine import tokens as text_tokens
from knn_logits.engine.location import find_key
from knn_logits.engine.tokens import special_tokens, token_blocks, tokenize
from knn_logits.engine.windows import plan, stream
from knn_logits.measure.text_pass import (
    Text,
    score_pieces,
)

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
def test_documents_words_and_bytes(tokenizer, concatenate):
    documents = ["The harbour crane", Document("Queen Maira, 1312\nœ", "id"), "x"]
    text = Text("t", documents, tokenizer, 4, 2, concatenate=concatenate)
    pieces = list(text.pieces())
    ids = [tokenizer(one if isinstance(one, str) else one.text)["input_ids"] for one in documents]
    assert text.documents == 3
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
    first = [tokenizer.decode(row[:1]) for row in ids]
    whole = ["The harbour crane", "Queen Maira, 1312\nœ", "x"]
    rest = [
        text if concatenate and number else text[len(first[number]) :]
        for number, text in enumerate(whole)
    ]
    assert text.bytes == sum(len(one.encode()) for one in rest)


def test_a_beginning_token_leaves_all_words_to_be_scored(tokenizer):
    class WithBeginning:
        def __call__(self, text, add_special_tokens=True, **settings):
            found = tokenizer(text, add_special_tokens=False, **settings)["input_ids"]
            return {"input_ids": [0, *found] if add_special_tokens else found}

        def decode(self, ids, skip_special_tokens):
            return tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    text = Text("t", ["The crane"], WithBeginning(), 8, 8)
    (piece,) = text.pieces()
    assert piece.tokens[0] == 0
    assert text.bytes == 9


def test_blocks_are_what_tokenize_gives(tokenizer, monkeypatch):
    monkeypatch.setattr(text_tokens, "_PART", 40)
    monkeypatch.setattr(text_tokens, "_BLOCK", 40)
    text = "The harbour crane lifts twelve crates\nan hour. " * 9 + "\nEnd"
    ((_, whole),) = tokenize(tokenizer, [Document(text, "d")])
    blocks = list(token_blocks(tokenizer, text, special_tokens(tokenizer)))
    assert len(blocks) > 3
    assert np.concatenate(blocks).tolist() == whole


@settings(max_examples=15)
@given(st.integers(2, 90), st.integers(1, 300), st.integers(0, 3))
def test_each_token_is_scored_as_in_its_window(model, length, batch_tokens, seed):
    tokens = np.random.default_rng(seed).integers(1, 384, length).astype(np.int32)
    pieces = list(stream([tokens], 32, 16))
    location = find_key(model)
    found = {}
    for scored in score_pieces(model, location, pieces, batch_tokens):
        assert len(scored.states) == len(scored.targets) == len(scored.log_p_lm)
        for place, target, score in zip(
            scored.places.tolist(), scored.targets.tolist(), scored.log_p_lm.tolist(), strict=True
        ):
            assert target == tokens[place]
            found[place] = score
    assert sorted(found) == list(range(1, length))
    for piece in pieces:
        with torch.inference_mode():
            ids = torch.from_numpy(piece.tokens[:-1].astype(np.int64))[None]
            log_p = torch.log_softmax(model(ids).logits[0].double(), -1).numpy()
        for row in range(piece.skip, piece.size):
            expected = log_p[row, piece.tokens[row + 1]]
            assert found[piece.first + row + 1] == pytest.approx(expected, abs=2e-5)
