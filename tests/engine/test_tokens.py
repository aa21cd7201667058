import pytest
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import build_datastore
from knn_logits.corpus.documents import Document
from knn_logits.engine import tokens as module
from knn_logits.engine.tokens import special_tokens, tokenize


def with_special_tokens(tokenizer, template):
    """The same tokenizer, putting its end-of-text token around each text."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    fast = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    fast.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<|endoftext|>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|endoftext|>")


def cut(tokenizer, texts):
    documents = [Document(text, str(number)) for number, text in enumerate(texts)]
    found = list(tokenize(tokenizer, iter(documents)))
    assert [document for document, _ in found] == documents
    return [ids for _, ids in found]


TEXTS = [
    "The crane.",
    "",
    "a",
    "Two\nlines\n\nand more",
    "naïve 👍🏽 \ud7ff",
    "<|endoftext|> in text",
]


def test_texts_are_cut_as_the_tokenizer_cuts_them(tokenizer):
    assert cut(tokenizer, TEXTS) == [
        tokenizer(text, split_special_tokens=True)["input_ids"] for text in TEXTS
    ]
    assert cut(tokenizer, []) == []


@pytest.mark.parametrize(
    "template",
    ["<|endoftext|> $A", "$A <|endoftext|>", "<|endoftext|> $A <|endoftext|>", "$A"],
)
def test_special_tokens_stand_where_the_tokenizer_puts_them(tokenizer, template):
    special = with_special_tokens(tokenizer, template)
    expected = [special(text, split_special_tokens=True)["input_ids"] for text in TEXTS]
    assert cut(special, TEXTS) == expected
    assert expected[0] == [
        one
        for part in template.split()
        for one in ([0] if part != "$A" else tokenizer(TEXTS[0])["input_ids"])
    ]


def test_a_special_token_at_the_start_is_part_of_the_datastore(model, tokenizer, tmp_path):
    special = with_special_tokens(tokenizer, "<|endoftext|> $A")
    store = build_datastore(model, special, ["The crane.", "The pump."], tmp_path / "s")
    for number, text in enumerate(["The crane.", "The pump."]):
        record = store.documents[number]
        ids = store.tokens[record.first : record.first + record.length].tolist()
        assert ids == [0, *tokenizer(text)["input_ids"]]
    # The first word is predicted from the special token, so it is an entry as well.
    assert int(store.values[0]) == tokenizer("The crane.")["input_ids"][0]


words = st.sampled_from(["crane", " oil", "\n", "\n\n", " ", "é", "\t", ".", "E42", "\r\n", "  x"])


@given(st.lists(words, max_size=60).map("".join), st.integers(1, 20))
def test_a_long_text_cut_in_parts_gives_the_same_tokens(tokenizer, text, part):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PART", part)
        patch.setattr(module, "_PARTS_AT_ONCE", 3)
        parts = list(module._parts(text))
        assert "".join(parts) == text
        assert cut(tokenizer, [text, text]) == [tokenizer(text)["input_ids"]] * 2


def test_parts_end_with_a_line():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PART", 4)
        assert list(module._parts("")) == [""]
        assert list(module._parts("abc\ndefgh\nij")) == ["abc\ndefgh\n", "ij"]
        assert list(module._parts("abcdefgh")) == ["abcdefgh"]
        # A line that starts with a space belongs to the tokens before it.
        assert list(module._parts("abcd\n x\ny")) == ["abcd\n x\n", "y"]


@given(st.lists(st.text("ab c\n", max_size=30), max_size=12), st.integers(1, 30))
def test_documents_are_grouped_in_order(tokenizer, texts, characters):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PART", 8)
        patch.setattr(module, "_PARTS_AT_ONCE", 2)
        patch.setattr(module, "_CHARACTERS_AT_ONCE", characters)
        assert cut(tokenizer, texts) == [tokenizer(text)["input_ids"] for text in texts]


def test_documents_are_read_as_they_are_needed(tokenizer):
    read = []

    def documents():
        for number in range(1000):
            read.append(number)
            yield Document("text", str(number))

    found = tokenize(tokenizer, documents())
    next(found)
    assert len(read) == 64


def test_no_warning_about_the_length_of_a_text(tokenizer, caplog, recwarn):
    tokenizer.model_max_length, before = 5, tokenizer.model_max_length
    try:
        assert len(cut(tokenizer, ["crane " * 50])[0]) > 5
    finally:
        tokenizer.model_max_length = before
    assert not caplog.records
    assert not list(recwarn)


@pytest.mark.parametrize("dropped", ["a", "[a-zA-Z0-9.]", "[^\u0e00-\u0e7f]"])
def test_special_tokens_around_a_text_that_has_no_probe(tokenizer, dropped):
    from tokenizers import Regex, Tokenizer, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    fast = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    fast.normalizer = normalizers.Replace(Regex(dropped), "")
    first, last = fast.get_vocab_size() - 2, fast.get_vocab_size() - 1
    pair = [(fast.id_to_token(first), first), (fast.id_to_token(last), last)]
    fast.add_tokens(["กข"])
    fast.post_processor = processors.TemplateProcessing(
        single=f"{pair[0][0]} $A {pair[1][0]}", special_tokens=pair
    )
    drops = PreTrainedTokenizerFast(tokenizer_object=fast)
    assert drops("a", add_special_tokens=False)["input_ids"] == []
    assert special_tokens(drops) == ([first], [last])
