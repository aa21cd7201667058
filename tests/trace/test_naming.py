"""A passage may name what a prompt names, however differently the prompt is worded."""

import numpy as np
import pytest
from conftest import TEXTS

import knn_logits
from knn_logits.trace.naming import common_words, names_alike

# Each text in four documents, which all have some words, and each has a name of its own.
MANY = [
    f"{text} So says report K-{number}{place}."
    for number in range(4)
    for place, text in enumerate(TEXTS)
]


@pytest.fixture(scope="module")
def many(model, tokenizer, tmp_path_factory):
    documents = [
        knn_logits.Document(text, f"d{number}", title="Zanzibar" if number == 2 else None)
        for number, text in enumerate(MANY)
    ]
    return knn_logits.build_datastore(
        model, tokenizer, documents, tmp_path_factory.mktemp("naming") / "s"
    )


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
