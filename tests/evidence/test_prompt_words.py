"""A passage may name what a prompt names, however differently the prompt is worded."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import TEXTS

import knn_logits
from knn_logits.building.removing import compact
from knn_logits.evidence.prompt_words import (
    common_words,
    names_alike,
    unknown_names,
    widespread_words,
)

# Each text in four documents, which all have some words, and each has a name of its own.
MANY = [
    f"{text} So says report K-{number}{place}."
    for number in range(4)
    for place, text in enumerate(TEXTS)
]


@pytest.fixture(scope="module")
def many(build, tmp_path_factory):
    documents = [
        knn_logits.Document(text, f"d{number}", title="Zanzibar" if number == 2 else None)
        for number, text in enumerate(MANY)
    ]
    return build(documents, tmp_path_factory.mktemp("naming") / "s")


def entry_of(store, document):
    """An entry in the middle of a document."""
    middle = store.documents[document].first + 20
    return int(store.contexts.entries_of(np.array([middle]), np.ones(1, np.int64))[0])


def test_what_few_passages_have_is_a_name(tokenizer, many):
    common = common_words(tokenizer, many)
    assert {"the", "so", "says", "report"} <= common
    assert common_words(tokenizer, many) is common


@pytest.mark.parametrize(
    ("prompt", "document", "alike"),
    [
        ("whose is k-05, please?", 5, True),
        ("whose is K-05, please?", 6, False),
        ("so says the report", 5, False),
        ("", 5, False),
        ("?!", 5, False),
        ("is that in zanzibar", 2, True),
        ("is that in zanzibar", 3, False),
    ],
)
def test_a_passage_is_asked_for_the_prompts_rare_words(tokenizer, many, prompt, document, alike):
    assert names_alike(tokenizer, prompt, many, entry_of(many, document)) is alike


@pytest.mark.parametrize(
    ("prompt", "unknown"),
    [
        ("Who makes K-05?", ()),
        ("who makes k-05?", ()),
        ("who makes k05?", ()),
        ("who makes k06x?", ("k06x",)),
        ("Who makes K-99X?", ("K-99X",)),
        ("Is K-99X's maker that of K-98X, or of K-99X?", ("K-99X", "K-98X")),
        ("Did Zanzibar write a report?", ()),  # a title
        ("Did Quxley write it? Nobody knows.", ("Quxley",)),
        ("did quxley write it?", ()),
        ("DID QUXLEY WRITE IT?", ()),
        ("", ()),
        ("is Quxley " + "far " * 40, ()),
        ("is X" + "9" * 64, ()),
    ],
)
def test_names_that_stand_nowhere_are_found(tokenizer, many, prompt, unknown):
    assert unknown_names(tokenizer, prompt, [many]) == unknown


def test_one_of_several_datastores_is_enough(tokenizer, build, many, tmp_path):
    other = build(["The firm of Quxley makes K-99X."], tmp_path / "s", index="exact")
    prompt = "Does Quxley make K-99X or K-05?"
    assert unknown_names(tokenizer, prompt, [other]) == ("K-05",)
    assert unknown_names(tokenizer, prompt, [many, other]) == ()


def test_only_documents_that_may_vote_know_a_name(model, tokenizer, build, many, tmp_path):
    shutil.copytree(many.folder, tmp_path / "s")
    removed = knn_logits.remove_documents(tmp_path / "s", ["d5"])
    prompt = "Who makes K-05, and who K-06 in Zanzibar?"
    inputs = tokenizer(prompt, return_tensors="pt")

    def unknown(datastore, **settings):
        with knn_logits.KNNLogitsProcessor(model, datastore, **settings) as knn:
            return knn.trace(knn.generate(**inputs, max_new_tokens=2), tokenizer)[0].unknown

    assert unknown(many) == ()
    assert unknown(many, exclude=["d5"]) == ("K-05",)
    assert unknown(many, exclude=["d5", "d6", "d2"]) == ("K-05", "K-06", "Zanzibar")
    assert unknown(removed) == ("K-05",)
    assert unknown(removed, exclude=["d6"]) == ("K-05", "K-06")
    assert unknown(compact(tmp_path / "s")) == ("K-05",)
    other = build(["Zanzibar makes K-06."], tmp_path / "o", index="exact")
    assert unknown([other, many]) == ()
    assert unknown([other, many], weights=[1.0, 0.0]) == ("K-05",)
    assert unknown([other, many], weights=[0.5, 0.5], exclude=["d5"]) == ("K-05",)


def test_a_name_does_not_run_from_one_document_into_the_next(model, tokenizer, tmp_path):
    texts = ["The winch is by Zan", "zibar is far, far away."]
    store = knn_logits.build_datastore(
        model, tokenizer, texts, tmp_path / "s", index="exact", calibrate=False
    )
    assert unknown_names(tokenizer, "where is Zanzibar?", [store]) == ("Zanzibar",)
    assert unknown_names(tokenizer, "where is Zibar?", [store]) == ()
    assert unknown_names(tokenizer, "where is Zibar?", [store], ["1"]) == ("Zibar",)


@pytest.mark.parametrize(
    "name",
    [
        "Quxley", "QUXLEY", "Smith", "1,000", "2500", "Iphone5", "Mcdonald", "JEAN-LUC",
        "Stockholm", "Tampa", "Oslo", "A1B2", "Zurich", "Zürich", "Zu\u0308rich", "K\u20114224",
    ],
)  # fmt: skip
def test_a_name_is_found_however_it_is_written(tokenizer, written, name):
    assert unknown_names(tokenizer, f"what of {name}?", [written]) == ()
    assert unknown_names(tokenizer, "what of Zorbax?", [written]) == ("Zorbax",)


@pytest.fixture(scope="module")
def written(build, tmp_path_factory):
    text = (
        "Quxley starts. The Smiths met for 1000 or 2,500 at Zürich. An iPhone5 of McDonald and "
        "Jean-Luc, 'stockholm' [Tampa] _Oslo_ A-1B2 K-4224."
    )
    return build([text], tmp_path_factory.mktemp("written") / "s", index="exact")


def test_a_memory_without_text_says_nothing_of_names(tokenizer, many):
    learned = SimpleNamespace(manifest=SimpleNamespace(learned=object()), tokens=[])
    assert unknown_names(tokenizer, "Who makes K-99X?", [learned]) == ()
    assert unknown_names(tokenizer, "Who makes K-99X?", [many, learned]) == ()
    assert unknown_names(tokenizer, "Who makes K-99X?", []) == ()


def test_a_trace_keeps_the_unknown_names_and_says_them(model, tokenizer, many, tmp_path, capsys):
    inputs = tokenizer("Who makes K-99X?", return_tensors="pt")
    with knn_logits.KNNLogitsProcessor(model, many) as knn:
        output = knn.generate(**inputs, max_new_tokens=2)
        trace = knn.trace(output, tokenizer)
    assert trace[0].unknown == ("K-99X",)
    trace.save(tmp_path / "t.json")
    assert knn_logits.Trace.load(tmp_path / "t.json")[0].unknown == ("K-99X",)
    trace.show()
    assert "“K-99X” stands in no document" in capsys.readouterr().out
    assert "“K-99X” stands in no document" in trace._repr_html_()


def test_short_words_of_many_documents_name_none(model, tokenizer, many, tmp_path):
    assert widespread_words(tokenizer, "So the K-12 may: the report", [many]) == ("so", "the")
    assert widespread_words(tokenizer, "so", []) == ()
    single = knn_logits.build_datastore(model, tokenizer, MANY[:2], tmp_path / "s", calibrate=False)
    assert widespread_words(tokenizer, "So the", [single]) == ()
    trace = knn_logits.explain(model, tokenizer, many, "So says the report.")
    assert trace[0].widespread == ("says", "the")
    trace.save(tmp_path / "t.json")
    assert knn_logits.Trace.load(tmp_path / "t.json")[0].widespread == ("says", "the")
