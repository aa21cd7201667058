"""Line breaks that only keep lines short become spaces; all others stay."""

import textwrap

import pytest
from corpus_files import read, text_of, write
from hypothesis import given
from hypothesis import strategies as st

from knn_logits.corpus.parsers.prose import unwrapped

SENTENCE = (
    "The winch of the harbour crane lifts twelve crates an hour, and stops by itself as soon as "
    "its drum is blocked; the keeper then opens the cover and clears the drum by hand."
)
KEPT = {
    "poem.txt": "O Captain! my Captain! our fearful trip upon the sea is done at last,\n"
    "The ship has weather'd every rack,\n"
    "the prize we sought for many years is won, and near is the port.\n",
    "table.txt": "crane     twelve crates an hour     harbour, at the northern pier of Oldenport\n"
    "winch     one crate an hour         harbour, at the southern pier of Oldenport\n",
    "contents.txt": "Cranes of the harbour and how the keeper is to clear them .......   7\n"
    "Winches of the harbour and how the keeper is to clear them . . .   12\n",
    "code.rst": "An example that shows the call of the crane with each of its arguments::\n\n"
    + textwrap.indent(textwrap.fill(SENTENCE, 70), "    ")
    + "\n\n"
    + textwrap.indent(textwrap.fill(SENTENCE, 66), "    ")
    + "\n",
    "tool.py": textwrap.fill(SENTENCE, 70),
    "breaks.md": textwrap.fill(SENTENCE, 70).replace("\n", "  \n"),
    "fence.md": f"```\n{textwrap.fill(SENTENCE, 70)}\n```\n",
}


@pytest.mark.parametrize("width", [64, 72, 79, 120])
@pytest.mark.parametrize("suffix", ["txt", "rst", "md"])
def test_a_wrapped_paragraph_is_one_line(tmp_path, suffix, width):
    wrapped = textwrap.fill(SENTENCE, width)
    item = textwrap.fill(SENTENCE, width, initial_indent="- ", subsequent_indent="  ")
    text = text_of(tmp_path / f"a.{suffix}", f"{wrapped}\n\n{item}\n{item}\n\nEnd.\n")
    assert text == f"{SENTENCE}\n\n- {SENTENCE}\n- {SENTENCE}\n\nEnd.\n"


@pytest.mark.parametrize(("blank", "breaks"), [("  ", 4), ("\t", 5)])
def test_a_manual_page_keeps_the_name_of_an_option_and_gets_whole_words(tmp_path, blank, breaks):
    """Its paragraphs are justified, and U+2010 parts a word at the end of a line.

    `col` writes tabs for wide blanks. A paragraph with tabs may be a table and keeps its lines.
    """
    lines = [
        "-k --keep",
        f"       The winch  lifts{blank}twelve  crates an hour.   It stops as",
        "       soon as its drum is blocked; the  long\u2010armed  kee\u2010",
        "       per then opens the cover and clears the drum by hand.",
    ]
    text = text_of(tmp_path / "a.txt", "\n".join([*lines, "", "End.", ""]))
    assert " ".join(text.split()) == (
        "-k --keep The winch lifts twelve crates an hour. It stops as soon as its drum is blocked; "
        "the long\u2010armed keeper then opens the cover and clears the drum by hand. End."
    )
    assert text.count("\n") == breaks


def test_a_long_paragraph_that_comes_in_parts_is_one_line(tmp_path):
    text = text_of(tmp_path / "a.txt", textwrap.fill(" ".join([SENTENCE] * 20), 75) + "\n")
    assert text == " ".join([SENTENCE] * 20) + "\n"


@pytest.mark.parametrize("name", KEPT)
def test_other_line_breaks_stay(tmp_path, name):
    assert text_of(tmp_path / name, KEPT[name]) == KEPT[name]


def test_the_body_of_a_mail_is_joined(tmp_path):
    head = "From: a@b.c\nSubject: crane\nContent-Type: text/plain\n\n"
    text = text_of(tmp_path / "a.eml", head + textwrap.fill(SENTENCE, 72) + "\n")
    assert SENTENCE in text


def test_the_lines_of_blocks_are_those_of_the_file(tmp_path):
    wrapped = textwrap.fill(SENTENCE, 60)
    for suffix in ("txt", "md"):
        path = write(tmp_path / f"a.{suffix}", f"{wrapped}\n\n{wrapped}\n\nEnd.\n")
        ((document,), _) = read(path)
        lines = wrapped.count("\n") + 2
        places = [block.place for block in document.blocks]
        assert places == ["line 1", f"line {1 + lines}", f"line {1 + 2 * lines}"]


@given(st.lists(st.text("ab.,-:*#|> \t", max_size=90), max_size=6))
def test_only_white_space_changes(lines):
    text = "\n".join(lines)
    assert unwrapped(text).split() == text.split()
