"""The text of single tokens, of parts of a text, and of what might follow it."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knn_logits.text.pieces import Pieces, TextAfter, decoded, parts_of, token_texts


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
    short = ids[-9:]
    assert TextAfter(tokenizer, ids[:-1])(ids[-1]) == token_texts(tokenizer, short)[-1]


def test_a_character_in_parts_belongs_to_the_later_one(tokenizer):
    ids = tokenizer("a 👍🏽 b")["input_ids"]
    texts = token_texts(tokenizer, ids)
    cut = next(place for place, text in enumerate(texts) if not text)
    before, rest = parts_of(tokenizer, ids, [cut + 1])
    assert before + rest == "a 👍🏽 b"
    assert before == "a "


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 383), max_size=60), st.lists(st.integers(0, 383), max_size=12))
def test_pieces_are_the_same_one_by_one_and_all_at_once(tokenizer, ids, before):
    one_by_one = Pieces(tokenizer, before)
    assert "".join(one_by_one.add(one) for one in ids) == Pieces(tokenizer, before).add_all(ids)
