"""The text of single tokens, of parts of a text, and of what might follow it."""

import pytest
from byte_tokens import RARE, make_byte_fallback
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knn_logits.engine.pieces import (
    Pieces,
    TextAfter,
    decoded,
    parts_of,
    token_texts,
    whole_characters,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 383), min_size=1, max_size=30), st.data())
def test_parts_and_the_text_after_are_those_of_token_by_token(tokenizer, ids, data):
    """Random bytes of a byte-level tokenizer cut characters at every place."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=3)))
    texts = token_texts(tokenizer, ids)
    parts = parts_of(tokenizer, ids, cuts)
    assert "".join(parts) == decoded(tokenizer, ids)
    if "\ufffd" not in decoded(tokenizer, ids):
        places = zip([0, *cuts], [*cuts, len(ids)], strict=True)
        assert parts == ["".join(texts[start:end]) for start, end in places]
    if "\ufffd" not in decoded(tokenizer, ids):
        assert TextAfter(tokenizer, ids[:-1])(ids[-1]) == texts[-1]


def test_a_character_in_parts_belongs_to_the_later_one(tokenizer):
    ids = tokenizer("a 👍🏽 b")["input_ids"]
    texts = token_texts(tokenizer, ids)
    cut = next(place for place, text in enumerate(texts) if not text)
    before, rest = parts_of(tokenizer, ids, [cut + 1])
    assert before + rest == "a 👍🏽 b"
    assert before == "a "
    for end in range(1, len(ids)):
        assert "".join(token_texts(tokenizer, ids[:end])) == decoded(tokenizer, ids[:end])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 383), max_size=60), st.lists(st.integers(0, 383), max_size=12))
def test_pieces_are_the_same_one_by_one_and_all_at_once(tokenizer, ids, before):
    one_by_one = Pieces(tokenizer, before)
    assert "".join(one_by_one.add(one) for one in ids) == Pieces(tokenizer, before).add_all(ids)


@pytest.fixture(scope="module")
def byte_fallback():
    return make_byte_fallback()


@pytest.mark.parametrize("text", [RARE, "東京" * 40, "a" * 40 + "の", "の" + "b " * 40])
def test_a_row_of_bytes_is_read_from_a_whole_character_on(byte_fallback, text):
    ids = byte_fallback(text)["input_ids"]
    assert decoded(byte_fallback, ids) == text
    texts = token_texts(byte_fallback, ids)
    assert "".join(texts) == text
    for cut in range(len(ids)):
        pieces = Pieces(byte_fallback, ids[:cut])
        assert "".join(pieces.add(one) for one in ids[cut:]) == "".join(texts[cut:])
        assert Pieces(byte_fallback, ids[:cut]).add_all(ids[cut:]) == "".join(texts[cut:])
        assert "".join(parts_of(byte_fallback, ids, [cut])) == text
        if texts[cut]:
            assert TextAfter(byte_fallback, ids[:cut])(ids[cut]) == texts[cut]


@pytest.mark.parametrize("text", [RARE, "東京" * 40])
def test_a_text_that_ends_within_a_character_keeps_those_before(byte_fallback, text):
    ids = byte_fallback(text)["input_ids"]
    for end in range(1, len(ids) + 1):
        joined = "".join(token_texts(byte_fallback, ids[:end])).rstrip("\ufffd")
        streamed = Pieces(byte_fallback, [])
        assert joined == "".join(streamed.add(one) for one in ids[:end])
        assert text.startswith(joined)
        assert "".join(parts_of(byte_fallback, ids[:end], [end // 2])).rstrip("\ufffd") == joined
        assert len(byte_fallback(text[: len(joined) + 1])["input_ids"]) >= end


def test_a_long_row_of_replacement_characters_is_a_text(tokenizer):
    """A file that was decoded wrongly holds many, and looking for a whole one would take long."""
    ids = tokenizer("a" + "\ufffd" * 300)["input_ids"]
    asked = []

    class Counted:
        def decode(self, ids, **settings):
            asked.append(len(ids))
            return tokenizer.decode(ids, **settings)

    assert Pieces(Counted(), []).add_all(ids) == "a" + "\ufffd" * 300
    assert len(asked) < 200
    pieces = Pieces(tokenizer, [])
    assert any([pieces.add(token) for token in ids][40:80])


def test_a_part_of_a_row_of_bytes_is_cut_at_whole_characters(byte_fallback):
    ids = byte_fallback("in 東京の天気は")["input_ids"]
    bytes_from = next(place for place, one in enumerate(ids) if place > 3 and one > 28)
    for first in range(bytes_from, bytes_from + 9):
        for end in range(first + 7, len(ids) + 1):
            one, other = whole_characters(byte_fallback, ids[first:end], 3, 3)
            assert 0 <= one < 3
            assert (first + one - bytes_from) % 3 == (first + other - bytes_from) % 3 == 0
            assert "\ufffd" not in decoded(byte_fallback, ids[first + one : first + other])
    broken = [ids[bytes_from]] * 5
    assert whole_characters(byte_fallback, broken, 2, 2) == (0, 5)
    assert whole_characters(byte_fallback, ids[bytes_from + 1 :], 0, 3)[0] == 0
