"""PDF, HTML, office documents, books, notebooks and mail: their text, and where it stands."""

import io
import zlib
from email.message import EmailMessage

import pytest
from corpus_files import blocks_of, failure, places_of, read, write
from office_files import docx, encrypted_pdf, epub, notebook, paragraph, pdf, table

from knn_logits.corpus.parsers.pdf import paragraphs
from knn_logits.corpus.parsers.pdf import read as read_pdf

WINCH = "When error code E42 appears, open the winch cover."


def only(path, **options):
    documents, skipped = read(path, **options)
    assert skipped == []
    (document,) = documents
    return document


def placed(document):
    """The document's text by its places."""
    places = places_of(document)
    ends = [start for start, *_ in places[1:]] + [len(document.text)]
    return [
        (name, fragment, document.text[start:end].strip())
        for (start, name, fragment), end in zip(places, ends, strict=True)
    ]


# PDF


def test_a_pdf_is_one_document_with_its_pages_as_places(tmp_path):
    document = only(write(tmp_path / "handbook.pdf", pdf("First page.", "", "Third page.")))
    assert (document.id, document.uri) == ("handbook.pdf", "handbook.pdf")
    assert placed(document) == [
        ("page 1", "page=1", "First page."),
        ("page 3", "page=3", "Third page."),
    ]


def test_the_lines_of_a_pdf_become_paragraphs_again(tmp_path):
    page = (
        "Errors\n"
        "When error code E42 appears, open the winch cover and clear the cab-\n"
        "le drum by hand. The drum is made of iron, so never use a crow bar\n"
        "on it.\n"
        "- one item of a list\n"
        "- another item of it"
    )
    assert only(write(tmp_path / "a.pdf", pdf(page))).text.strip() == (
        "Errors\n\n"
        "When error code E42 appears, open the winch cover and clear the cable drum by hand. The "
        "drum is made of iron, so never use a crow bar on it.\n"
        "- one item of a list\n"
        "- another item of it"
    )


def test_a_heading_in_a_pdf_stands_alone():
    body = "The batteries are charged at the quay during the night, which takes five hours."
    rest = "It suffices for three crossings."
    lines = ["The ferry", "1. Charging", body, rest, "2. Rules", body, rest]
    text = ("p", f"{body} {rest}")
    headings = [("h2", "The ferry"), ("h2", "1. Charging"), text, ("h2", "2. Rules"), text]
    assert paragraphs(lines) == headings
    verses = ["Roses are red", "Violets are blue", "Sugar is sweet", body, rest]
    items = ["1. Open it", "2. Close it", body, rest]
    unfinished = [body.removesuffix("."), "Morvik", body, rest]
    for lines in (verses, items, unfinished):
        assert "h2" not in dict(paragraphs(lines))


ROOMS = [["Room", "Seats", "Price"], ["Alder", "12", "3 crowns"], ["Birch", "40", "9 crowns"]]


def blocks_of_table(path, rows, by_columns=False):
    """The blocks of a PDF with a table, which the file has row by row or column by column."""
    cells = [
        (row, column, text) for row, line in enumerate(rows) for column, text in enumerate(line)
    ]
    texts = (
        f"BT /F1 12 Tf 1 0 0 1 {20 + 120 * column} {380 - 14 * row} Tm ({text}) Tj ET "
        for row, column, text in (sorted(cells, key=lambda one: one[1]) if by_columns else cells)
    )
    return blocks_of(only(write(path, pdf(streams=[zlib.compress("".join(texts).encode())]))))


def test_the_rows_of_a_table_in_a_pdf_have_columns(tmp_path):
    kinds = ["th", "tr", "tr"]
    expected = [*zip(kinds, map("\t".join, ROOMS), strict=True)]
    assert blocks_of_table(tmp_path / "a.pdf", ROOMS) == expected


@pytest.mark.parametrize(
    ("rows", "by_columns"),
    [
        (ROOMS, True),  # columns of text, which are read one after the other
        (ROOMS[:2], False),  # justified text may have gaps alike in two lines
        ([["Name", "Anna Vey"], ["Town", "Harrow"], ["Trade", "smith"]], False),
        ([["May 1", "Alder"], ["May 2", "Birch"], ["May 3", "Elm"]], False),
        ([*ROOMS[:2], ["Birch", "9 crowns"]], False),  # a cell is missing, who knows which
    ],
)
def test_lines_of_a_pdf_that_may_be_no_table_have_no_columns(rows, by_columns, tmp_path):
    for kind, text in blocks_of_table(tmp_path / "a.pdf", rows, by_columns):
        assert kind not in ("th", "tr")
        assert "\t" not in text


def test_the_ligatures_of_a_pdf_are_letters(tmp_path, monkeypatch):
    monkeypatch.setattr("pypdf.PageObject.extract_text", lambda _, **__: "The oﬃce ﬁlter was ﬂat.")
    (block,) = read_pdf(io.BytesIO(pdf("x")))
    assert block.text.strip() == "The office filter was flat."


def test_a_pdf_that_is_free_to_read_is_read_and_one_with_a_password_is_not(tmp_path):
    free = encrypted_pdf(tmp_path / "free.pdf", "", WINCH)
    locked = encrypted_pdf(tmp_path / "locked.pdf", "secret", WINCH)
    documents, skipped = read(free, locked)
    assert [one.text.strip() for one in documents] == [WINCH]
    assert skipped == [(locked, "encrypted: save it without its password")]


def test_a_pdf_of_images_says_that_it_needs_recognition(tmp_path):
    scan = write(tmp_path / "scan.pdf", pdf("", ""))
    assert "its pages contain no text (2)" in failure(scan)
    assert "OCR" in failure(scan)


def test_a_pdf_is_known_by_its_first_bytes(tmp_path):
    assert only(write(tmp_path / "handbook", pdf(WINCH))).text.strip() == WINCH


# HTML

PAGE = f"""<!doctype html><html><head><title>Winches of
Oldenport</title><style>p{{}}</style></head><body><nav>Home Menu</nav>
<h1>Winches</h1><p>The  crane
lifts.</p><script>alert(1)</script>
<section id="err"><h2>Errors<a href="#err">¶</a></h2><p>Caf&eacute; <b>bold</b>, and
<i>italic</i>.<br>{WINCH}</p></section>
<ul><li>one</li><li><p>two <b>x</b></p></li></ul>
<table><tr><th>code</th><th><p>meaning</p></th></tr><tr><td>E42</td><td>blocked</td></tr></table>
<pre>if x:
    y = 1</pre><p>The
end.</p><p hidden>unseen</p><div style="display: none">unseen</div></body></html>"""


def test_html_is_what_a_reader_sees_with_headings_as_places(tmp_path):
    document = only(write(tmp_path / "page.html", PAGE))
    assert document.title == "Winches of Oldenport"
    assert document.text.rstrip() == (
        f"Winches\n\nThe crane lifts.\n\nErrors\n\nCafé bold, and italic.\n{WINCH}\n\n- one\n"
        "- two x\n\ncode\tmeaning\nE42\tblocked\n\nif x:\n    y = 1\n\nThe end."
    )
    assert [place[1:] for place in places_of(document)] == [("“Winches”", ""), ("“Errors”", "err")]
    assert [kind for kind, _ in blocks_of(document)] == [
        *("h1", "p", "h2", "p"),
        *("li", "li", "th", "tr", "pre", "p"),
    ]


@pytest.mark.parametrize("wrapped", ["<main>{}</main>", "<div role=main>{}</div>"])
def test_of_a_page_with_a_main_part_that_is_read(tmp_path, wrapped):
    main = wrapped.format("<p>Text.</p>")
    page = f"<header>Site</header>{main}Imprint<footer>Imprint</footer>"
    assert only(write(tmp_path / "a.htm", page)).text.strip() == "Text."


@pytest.mark.parametrize(
    ("begin", "encoding"),
    [
        ("<meta charset=windows-1252>", "cp1252"),
        ('<meta http-equiv=content-type content="text/html; charset=koi8-r">', "koi8-r"),
        ('<?xml version="1.0" encoding="iso-8859-1"?>', "latin-1"),
        ("", "utf-8"),
        ("", "utf-16"),
        ("<meta charset=nonsense>", "utf-8"),
    ],
)
def test_the_encoding_that_a_page_declares_holds(tmp_path, begin, encoding):
    word = "крышка" if encoding == "koi8-r" else "café"
    page = f"{begin}<p>{word} noir</p>".encode(encoding)
    assert only(write(tmp_path / "a.html", page)).text.strip() == f"{word} noir"


def test_a_deeply_nested_page_is_read_or_refused(tmp_path):
    deep = write(tmp_path / "deep.html", "<div>" * 1500 + "inside" + "</div>" * 1500)
    assert only(deep).text.strip() == "inside"


# Office


def test_a_word_document_has_headings_lists_and_tables(tmp_path):
    body = (
        paragraph("Before any heading.")
        + paragraph("Errors", "berschrift1")
        + paragraph(WINCH)
        + table(("code", "meaning"), ("E42", "blocked"))
    )
    document = only(docx(tmp_path / "manual.docx", body))
    assert document.text.rstrip() == (
        f"Before any heading.\n\nErrors\n\n{WINCH}\n\ncode\tmeaning\nE42\tblocked"
    )
    assert [place[1:] for place in places_of(document)] == [("“Errors”", "")]
    assert [kind for kind, _ in blocks_of(document)] == ["p", "h1", "p", "th", "tr"]


# Books, notebooks, mail


def test_a_book_is_read_in_the_order_of_its_spine(tmp_path):
    chapters = ["<h1>One</h1><p>First.</p>", "<p>Between.</p>", "<h1>Two</h1><p>Second.</p>"]
    document = only(epub(tmp_path / "book.epub", *chapters))
    assert document.title == "The Keeper"
    assert placed(document) == [
        ("“One”", "", "One\n\nFirst.\n\nBetween."),
        ("“Two”", "", "Two\n\nSecond."),
    ]


def test_a_protected_book_is_refused_and_one_with_hidden_fonts_is_not(tmp_path):
    fonts = epub(tmp_path / "a.epub", "Text.", protection="http://www.idpf.org/2008/embedding")
    assert only(fonts).text.strip() == "Text."
    locked = epub(tmp_path / "b.epub", "Text.", protection="http://ns.adobe.com/adept")
    assert "protected by DRM" in failure(locked)


def test_a_notebook_is_its_cells_without_their_output(tmp_path):
    cells = notebook(("markdown", "# Title\nProse."), ("code", "x = 1\nprint(x)"), ("raw", " "))
    document = only(write(tmp_path / "work.ipynb", cells))
    assert document.text == "# Title\nProse.\n\nx = 1\nprint(x)\n\n"
    assert [place[1] for place in places_of(document)] == ["cell 1", "cell 2"]
    assert [kind for kind, _ in blocks_of(document)] == ["h1", "p", "pre"]


def letter(subject="The winch – again", body=WINCH):
    message = EmailMessage()
    message["From"], message["To"] = "Maira <m@old.example>", "k@old.example"
    message["Subject"] = subject
    message.set_content(body)
    return message


def test_a_letter_has_its_subject_as_title_and_says_what_is_left_out(tmp_path):
    message = letter()
    message.add_alternative(f"<p>{WINCH}</p>", subtype="html")
    message.add_attachment(b"%PDF-", maintype="application", subtype="pdf", filename="r.pdf")
    path = write(tmp_path / "a.eml", bytes(message))
    notes = []
    document = only(path, on_note=lambda name, note: notes.append((name, note)))
    assert document.title == "The winch – again"
    assert document.text.endswith(f"Subject: The winch – again\n\n{WINCH}\n")
    assert notes == [(path, "attachments are not read (1): save them as files")]


def test_a_letter_in_html_alone_is_read(tmp_path):
    message = letter()
    message.set_content("<p>Only <b>this</b>.</p>", subtype="html")
    assert only(write(tmp_path / "a.eml", bytes(message))).text.endswith("\n\nOnly this.\n\n")
