"""A source says where it stands: the page, the heading or the line of its passage."""

import re

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, trainers
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from knn_logits import (
    Block,
    Datastore,
    Document,
    KNNLogitsProcessor,
    WindowConfig,
    add_documents,
    build_datastore,
    explain,
    read_corpus,
    remove_documents,
)
from knn_logits.building.removing import compact
from knn_logits.evidence.render import to_html
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


def test_the_words_of_a_page_are_of_that_page(store, tokenizer):
    record = store.documents[0]
    words = {"page 1": [], "page 2": [], "page 3": []}
    for token in range(record.length):
        words[record.place_at(token).name].append(int(store.tokens[record.first + token]))
    assert [tokenizer.decode(ids).strip() for ids in words.values()] == [p.strip() for p in PAGES]


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


def test_what_is_shown_names_the_page(explain, store, capsys):
    trace = explain(store, "".join(PAGES), k=1, lmbda=0.9, temperature=1.0, exclude=["titled.pdf"])
    trace.show()
    assert "by handbook.pdf, page " in capsys.readouterr().out
    assert "handbook.pdf, page " in to_html(trace)
    assert {one.document for one in trace[0].documents} == {"handbook.pdf"}


def test_places_survive_adding_removing_and_compacting(model, tokenizer, tmp_path):
    store = build(model, tokenizer, [Document("A text to go.", "gone"), paged()], tmp_path / "s")
    before = store.documents[1].metadata
    # The same content twice would not be added.
    add_documents(model, tokenizer, store, [paged("second.pdf", more=" Then close it.")])
    remove_documents(tmp_path / "s", ["gone"])
    small = compact(tmp_path / "s")
    assert [small.documents[n].id for n in range(2)] == ["handbook.pdf", "second.pdf"]
    assert [small.documents[n].metadata for n in range(2)] == [before, before]
    found = sources(model, tokenizer, small, "".join(PAGES))
    assert {one.title.partition(", ")[2] for one in found} <= {"page 1", "page 2", "page 3"}


def test_one_id_removes_all_parts_of_a_file(model, tokenizer, tmp_path):
    parts = [Document("The first part.", "big.txt"), Document("The second part.", "big.txt")]
    build(model, tokenizer, [*parts, Document("Another text.", "other")], tmp_path / "s")
    left = remove_documents(tmp_path / "s", ["big.txt"])
    assert list(left.manifest.removed) == [0, 1]


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


def test_a_store_gives_the_blocks_of_a_document_back(model, tokenizer, tmp_path):
    text = (
        "# Guide\n\nWhat to bring:\n\n- a rope\n- a lamp\n\n## Prices\n\n"
        "| Article | Price |\n|---|---|\n| rope | 7 |\n| lamp | 9 |\n\n"
        "####### no heading\n\n```\n# a comment\n```\n\n### Deep\n\n## Last\n\nEnd.\n"
    )
    (tmp_path / "guide.md").write_text(text)
    built = build(model, tokenizer, read_corpus([str(tmp_path / "guide.md")]), tmp_path / "s")
    record = Datastore(built.folder).documents[0]
    ids = built.tokens[record.first : record.first + record.length].tolist()
    texts = [tokenizer.decode(ids[one.start : one.end]).strip() for one in record.blocks]
    paths = [[texts[number].strip("# ") for number in one.headings] for one in record.blocks]
    assert [one.kind for one in record.blocks] == [
        *("h1", "p", "li", "li", "h2", "th", "tr", "tr"),
        *("p", "pre", "h3", "h2", "p"),
    ]
    assert [one.start for one in record.blocks[1:]] == [one.end for one in record.blocks[:-1]]
    assert paths == [[], *[["Guide"]] * 4, *[["Guide", "Prices"]] * 6, ["Guide"], ["Guide", "Last"]]
    leads = [one.lead if one.lead is None else texts[one.lead] for one in record.blocks]
    assert leads[2:4] == ["What to bring:"] * 2
    assert [lead.partition("\n")[0] for lead in leads[6:8]] == ["| Article | Price |"] * 2
    assert texts[6] == "| rope | 7 |"
    assert {lead for row, lead in enumerate(leads) if row not in (2, 3, 6, 7)} == {None}


def test_a_tokenizer_that_does_not_say_where_its_tokens_stand_gives_no_places(
    model, tokenizer, tmp_path
):
    class Slow:
        def __init__(self):
            self.asked = 0

        def __call__(self, *args, **options):
            self.asked += 1
            return {"input_ids": tokenizer(*args, **options)["input_ids"]}

        def __len__(self):
            return len(tokenizer)

        def __getattr__(self, name):
            return getattr(tokenizer, name)

    store = build(model, Slow(), [paged()], tmp_path / "s")
    assert store.documents[0].metadata is None


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
