"""Documents cut in passages: nothing is lost, headings stand above, removed documents are gone."""

import shutil
from itertools import pairwise

import pytest

import knn_logits
from knn_logits.ask.passages import MOST_TOKENS, passages_of

GUIDE = """# The crane

## Oil

The crane needs oil of grade nine. The pump needs oil of grade seven.

Oil is changed each spring.

## Winch

A blocked winch is opened by hand.
"""
LONG = " ".join(
    f"The crate number {number} was lifted by the crane at noon." for number in range(60)
)
UNDERLINED = "Release cycle\n=============\n\nA release follows each year.\n"
DESCRIBED = """.. py:data:: CRANE_HEIGHT

    How far the crane goes up.

    Default: ``7``

    .. versionadded:: 2.3

.. py:data:: CRANE_SPEED

    How fast it goes there.
"""


@pytest.fixture(scope="module")
def guides(build, tmp_path_factory):
    return build([GUIDE, LONG, UNDERLINED], tmp_path_factory.mktemp("guides") / "s")


def test_no_word_of_a_document_is_lost(guides, tokenizer):
    text = "".join(passage.text for passage in passages_of(tokenizer, guides))
    assert "".join(text.split()) == "".join((GUIDE + LONG + UNDERLINED).split())


def test_a_passage_stands_under_its_heading(guides, tokenizer):
    headings = {
        passage.heading: passage.text
        for passage in passages_of(tokenizer, guides)
        if passage.document == 0
    }
    assert list(headings)[-2:] == ["Oil", "Winch"]
    assert "grade seven" in headings["Oil"]
    assert "each spring" in headings["Oil"]
    assert "by hand" in headings["Winch"]
    (underlined,) = (row for row in passages_of(tokenizer, guides) if row.document == 2)
    assert underlined.heading == "Release cycle"


def test_a_long_paragraph_is_cut_between_sentences(guides, tokenizer):
    parts = [row for row in passages_of(tokenizer, guides) if row.document == 1]
    assert len(parts) > 3
    assert all(row.end - row.first <= MOST_TOKENS for row in parts)
    assert all(row.text.startswith("The crate") and row.text.endswith("noon.") for row in parts)
    assert all(a.end == b.first for a, b in pairwise(parts))


def test_a_removed_document_has_no_passage(guides, tokenizer, tmp_path):
    folder = shutil.copytree(guides.folder, tmp_path / "s")
    store = knn_logits.remove_documents(folder, ["1"])
    store = knn_logits.Datastore.from_pretrained(folder)
    assert {passage.document for passage in passages_of(tokenizer, store)} == {0, 2}


def test_what_a_directive_describes_stands_under_its_name(build, tokenizer, tmp_path):
    store = build([DESCRIBED], tmp_path / "s")
    first, second = passages_of(tokenizer, store)
    assert (first.heading, second.heading) == ("CRANE_HEIGHT", "CRANE_SPEED")
    assert "Default" in first.text


def headings_of(build, tokenizer, folder, text):
    return [row.heading for row in passages_of(tokenizer, build([text], folder / "s"))]


@pytest.mark.parametrize(
    ("lines", "headings"),
    [
        (("2. Charging", "It is charged at night."), ["2. Charging"]),
        (("3.1 Scope", "It holds.", "3.2 Terms", "They are old."), ["3.1 Scope", "3.2 Terms"]),
        (("1. Flour", "2. Salt", "Mix both."), [""]),
        (("12 apples", "They are red."), [""]),
        (("2. Charging",), [""]),
        (("2.1\tIs it loud?", "It is."), ["2.1 Is it loud?"]),
    ],
)  # fmt: skip
def test_a_numbered_line_is_a_heading_but_in_a_list(build, tokenizer, tmp_path, lines, headings):
    assert headings_of(build, tokenizer, tmp_path, "\n\n".join(lines)) == headings


LINE = "The crane is oiled by Oda each spring, and by nobody else in the whole town."


@pytest.mark.parametrize(
    ("text", "heading"),
    [
        ("Is it loud?\n\nIt is.", "Is it loud?"),
        (f"The  oil\n{LINE}", "The oil"),
        (f"2. The oil\n{LINE}", "2. The oil"),
        (f"The oil:\n{LINE}", ""),
        (f"The crane that stands in the harbour of Oldenport\n{LINE}", ""),
        ("The oil\nIt is old.", ""),
        ("The oil\nNobody oils the winch.", "The oil"),
        ("The oil\nCrane     nine", "The oil"),
        ("Part      Oil\nCrane     nine", ""),
        (f"# Crane\n\n## Oil\n\n### Age\n\n{LINE}", "Oil: Age"),
        (f"# Crane\n\n### Oil\n\n{LINE}\n\n## Age\n\n{LINE}", "Age"),
        (f"## Oil\n\n# A comment\n\n### Age\n\n{LINE}", "Age"),
    ],
)
def test_the_heading_of_the_last_passage(build, tokenizer, tmp_path, text, heading):
    assert headings_of(build, tokenizer, tmp_path, text)[-1] == heading


@pytest.mark.parametrize(
    ("name", "text", "title"),
    [
        ("lease.docx", "The lease\n\nRent\n\nIt is due.", "The lease"),
        ("guide.md", "---\nauthor: Haas\n---\n# The oven\n\nIt is hot.", "The oven"),
        ("leave.md", '---\ntitle: "The leave"\nlayout: page\n---\n\nIt is paid.', "The leave"),
        ("a/guide.rst", ".. _oven:\n\nThe oven\n========\n\nIt is hot.", "The oven"),
        ("notes.txt", "It is hot.\n\nThe oven\n\nIt is large.", "notes.txt"),
        ("oven.py", "# Copyright Haas\n\nx = 1\n", "oven.py"),
    ],
)
def test_a_document_without_title_is_called_what_it_opens_with(
    build, tokenizer, tmp_path, name, text, title
):
    store = build([knn_logits.Document(text, name)], tmp_path / "s")
    passages = passages_of(tokenizer, store)
    assert {row.title for row in passages} == {title}
    # Its file name finds it, too.
    assert all(row.named.startswith(f"{name}\n") for row in passages)


def test_a_title_that_was_given_holds(build, tokenizer, tmp_path):
    store = build([knn_logits.Document("The oven\n\nIt is hot.", "a.md", "Heat")], tmp_path / "s")
    assert {row.title for row in passages_of(tokenizer, store)} == {"Heat"}


def test_a_heading_without_a_text_is_read_with_the_one_below(build, tokenizer, tmp_path):
    text = "# The lease\n\n## Parties\n\nThe landlord is Oda.\n\n## Annex\n"
    first, last = passages_of(tokenizer, build([text], tmp_path / "s"))
    assert (first.heading, first.over, first.first) == ("Parties", ("The lease",), 0)
    assert first.text == "# The lease\n\n## Parties\n\nThe landlord is Oda."
    assert (last.heading, last.over) == ("Annex", ())
    many = "\n\n".join(f"The chapter with the number {number}" for number in range(200))
    passages = list(passages_of(tokenizer, build([many], tmp_path / "t")))
    assert all(row.end - row.first <= MOST_TOKENS for row in passages)
    assert "".join(" ".join(row.text for row in passages).split()) == "".join(many.split())
