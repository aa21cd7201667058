"""Traces and documents in tokenizers that have a token for each byte of a rare character."""

import pytest
from byte_tokens import RARE, make_byte_fallback
from conftest import make_gpt2

import knn_logits
from knn_logits import KNNLogitsProcessor, explain, read_corpus
from knn_logits.engine.pieces import token_texts
from knn_logits.evidence.token_documents import where


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    tokenizer, model = make_byte_fallback(), make_gpt2()
    folder = tmp_path_factory.mktemp("bytes") / "s"
    document = knn_logits.Document(RARE, "rare")
    store = knn_logits.build_datastore(
        model, tokenizer, [document], folder, k=8, index="exact", calibrate=False
    )
    return model, tokenizer, store


def test_passages_and_words_are_whole(made):
    model, tokenizer, store = made
    inputs = tokenizer("the weather in", return_tensors="pt")
    with KNNLogitsProcessor(model, store, k=4, lmbda=0.99, temperature=0.1) as knn:
        output = model.generate(
            input_ids=inputs["input_ids"], max_new_tokens=60, do_sample=False, pad_token_id=0,
            logits_processor=[knn],
        )  # fmt: skip
        trace = knn.trace(output, tokenizer)[0]
    # The text ends within a character, which takes no other one along.
    shown = (trace.prompt + trace.text).rstrip("\ufffd")
    assert RARE.startswith(shown)
    assert shown.endswith("हिन्दी म")
    assert "हिन्दी म" not in tokenizer.decode(output[0])
    explained = explain(model, tokenizer, store, RARE, k=4)[0]
    assert explained.prompt + explained.text == RARE
    passages = [near for token in explained.tokens for near in token.neighbors]
    assert len(passages) > 100
    for one in passages:
        # The tokens of a passage that its own entry's token stands in are always there.
        assert "\ufffd" not in one.before + one.after
        assert (one.before + one.word + one.after).strip() in RARE


def test_the_page_shows_whole_characters(made):
    drawer = pytest.importorskip("knn_logits_app.drawer")
    _, tokenizer, store = made
    entries = range(20, len(store) - 8, 5)
    spans = [(store.contexts.token_of(entry), 4) for entry in entries]
    shown = drawer.document(store, tokenizer, "rare", spans)
    assert "".join(text for text, *_ in shown["pieces"]) == RARE


def test_a_line_is_right_where_a_word_is_cut(made, tmp_path):
    """The bytes of a line's end stand in one row with those of the cut character behind it."""
    model, tokenizer, _ = made
    lines = [f"記{mark}" for mark in "東京の天気は晴れ" * 90]
    (tmp_path / "log.txt").write_text("\n".join(lines), "utf-8")
    documents = read_corpus([str(tmp_path / "log.txt")])
    store = knn_logits.build_datastore(
        model, tokenizer, documents, tmp_path / "s", index="exact", calibrate=False
    )
    texts, said = token_texts(tokenizer, store.tokens.tolist()), set()
    for entry in range(0, len(store), 5):
        position = store.contexts.token_of(entry)
        before = "".join(texts[:position])
        shown = where(store, entry, tokenizer)[0]
        if texts[position].strip() or not texts[position]:
            assert shown == f"log.txt, line {1 + before.count(chr(10))}"
            said.add(shown)
    assert len(said) == len(lines)
