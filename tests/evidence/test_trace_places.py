"""A source says where it stands: the page, the heading or the line of its passage."""

import re

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, trainers
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from knn_logits import (
    Block,
    Document,
    KNNLogitsProcessor,
    WindowConfig,
    build_datastore,
    explain,
    read_corpus,
)
from knn_logits.evidence.sources import main_sources
from knn_logits.evidence.token_documents import where
from knn_logits.store.blocks import BLOCKS
from knn_logits.store.documents import DocumentRecord

PAGES = [
    "The crane lifts twelve crates.\n\n",
    "Open the winch cover by hand.\n\n",
    "Clear the drum.",
]
LINES = "".join(f"The keeper writes note number {n} into his book.\n" for n in range(1, 61))


def paged(id="handbook.pdf", more="", **fields):
    starts = [sum(len(one) for one in PAGES[:number]) for number in range(len(PAGES))]
    blocks = [
        Block(start, "p", f"page {n}", f"page={n}") for n, start in enumerate(starts, start=1)
    ]
    return Document("".join(PAGES) + more, id, uri=id, blocks=blocks, **fields)


def build(model, tokenizer, documents, folder):
    return build_datastore(
        model, tokenizer, documents, folder, window=WindowConfig(64, 32), calibrate=False
    )


def sources(model, tokenizer, store, text):
    """All passages behind the tokens of a text that stands in the datastore, word for word."""
    trace = explain(model, tokenizer, store, text, k=1, lmbda=0.9, temperature=1.0)
    return [one for token in trace[0].tokens for one in token.neighbors]


@pytest.fixture(scope="module")
def store(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    (folder / "log.txt").write_text(LINES)
    documents = [
        paged(metadata={"year": 2026}),
        paged("titled.pdf", title="The handbook"),
        *read_corpus([str(folder / "log.txt")]),
        Document("No place at all, only a text.", "plain", uri="plain.txt"),
    ]
    return build(model, tokenizer, documents, folder / "store")


def test_titles_and_uris_of_passages_lead_to_the_page(model, tokenizer, store):
    found = sources(model, tokenizer, store, "".join(PAGES))
    assert {one.document for one in found} <= {"handbook.pdf", "titled.pdf"}
    for one in found:
        assert re.fullmatch(r"(handbook\.pdf|The handbook), page [123]", one.title)
        assert one.uri == f"{one.document}#page={one.title[-1]}"


def test_a_line_is_counted_to_the_very_word(tokenizer, store):
    lines = LINES.splitlines()
    record = next(store.documents[n] for n in range(4) if store.documents[n].id == "log.txt")
    assert len(LINES) > 2000
    first = int(store.contexts.first_entry[2])
    said = 0
    for entry in range(first, first + record.length - 1):
        token = store.contexts.token_of(entry)
        text = tokenizer.decode(store.tokens[record.first : token].tolist())
        title, uri = where(store, entry, tokenizer)
        assert title == f"log.txt, line {1 + text.count(chr(10))}"
        assert uri == "log.txt"
        said += 1
    assert said > len(lines)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "{}",
        f'{{"{BLOCKS}": 3}}',
        f'{{"{BLOCKS}": {{"a": 1}}}}',
        f'{{"{BLOCKS}": [["a"]]}}',
        f'{{"{BLOCKS}": [[]]}}',
        f'{{"{BLOCKS}": [[5, "p", "page 1"]]}}',
        f'{{"{BLOCKS}": [[1e999, "p", "page 1"], [-1, "p", "x"], [0, "b", "x"], [9, "p", "x"]]}}',
        f'{{"{BLOCKS}": ' + "[" * 100_000,
        f'["{BLOCKS}"]',
    ],
)
def test_places_that_make_no_sense_are_none(metadata):
    record = DocumentRecord(0, 9, "d", metadata=metadata)
    assert record.place_at(4) is None
    assert [(one.kind, one.end) for one in record.blocks] == [("p", 9)]


def test_words_after_a_line_break_are_on_their_own_line(model, tokenizer, tmp_path):
    """The memory brings the line breaks as well, and these stand at the end of the line before."""
    (tmp_path / "log.txt").write_text(f"Intro line one.\n\n\n\n\n{LINES}")
    documents = read_corpus([str(tmp_path / "log.txt")])
    store = build(model, tokenizer, documents, tmp_path / "store")
    inputs = tokenizer("Intro line one.", return_tensors="pt")
    settings = {"k": 1, "lmbda": 0.99, "temperature": 1.0, "retomaton": True}
    with KNNLogitsProcessor(model, store, **settings) as knn:
        output = knn.generate(**inputs, max_new_tokens=30, do_sample=False)
        trace = knn.trace(output, tokenizer)
    assert trace[0].text.startswith("\n\n\n\n\nThe keeper writes")
    (source,) = main_sources(trace[0], 1)
    assert source.words.strip().startswith("The keeper writes")
    assert source.neighbor.title.endswith("log.txt, line 6")


@pytest.mark.parametrize(
    "cut",
    [
        r"\s*[a-z]+|[^a-z]",
        r"\n+| ?[a-z]+|[^a-z]",
        r"\s*\n| ?[a-z]+|[^a-z]",
        r"\.\s*[a-z]+| ?[a-z]+|[^a-z]",
        r"\s+(?= )| ?[a-z]+|[^a-z]",
    ],
)
def test_a_line_is_right_if_tokens_hold_line_breaks(model, tmp_path, cut):
    """They hold them with a word, or several of them, also behind a U+FFFD of the text itself."""
    lines = "alpha \ufffd\nbeta \ufffd\n\n   gamma line.\n\n\ndelta\n \n\t\n  omega.\n\n"
    (tmp_path / "log.txt").write_text(lines * 90)
    made = Tokenizer(models.WordLevel({"<e>": 0}, "<e>"))
    words = Split(Regex(cut), "isolated")
    made.pre_tokenizer, made.decoder = words, decoders.Fuse()
    trainer = trainers.WordLevelTrainer(special_tokens=["<e>"], show_progress=False)
    made.train_from_iterator([(tmp_path / "log.txt").read_text()], trainer)
    joined = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<e>", unk_token="<e>")
    store = build(model, joined, read_corpus([str(tmp_path / "log.txt")]), tmp_path / "s")
    texts = [joined.decode([token]) for token in store.tokens.tolist()]
    assert any(one in texts for one in ("\n\n\ndelta", "\n\n\n", ".\n\n\ndelta", "\n \n\t\n "))
    for entry in range(len(store)):
        place = store.contexts.token_of(entry)
        if texts[place].strip(" \n\t\ufffd"):
            # A token's line is that of its first character that is seen.
            shown = texts[place][: re.search(r"[^\s\ufffd]", texts[place]).start()]
            line = 1 + "".join([*texts[:place], shown]).count("\n")
            assert where(store, entry, joined)[0] == f"log.txt, line {line}"
