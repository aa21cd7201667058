"""Documents are read as they are meant: numbers, merged cells, margins, letters, names."""

import unicodedata
from email.message import EmailMessage

import pytest
from corpus_files import blocks_of, places_of, read, text_of, write
from office_files import WORD, archive, docx, docx_members, epub, paragraph, pdf

from knn_logits import Datastore, build_datastore, read_corpus, remove_documents

MATH = "http://schemas.openxmlformats.org/officeDocument/2006/math"


def blocks(path):
    documents, skipped = read(path)
    assert skipped == []
    return [text for _, text in blocks_of(documents[0])]


# Numbers

RAISED = [
    ("10<sup>3</sup> kg", "10^3 kg"),
    ("m<sup>-2</sup>", "m^-2"),
    ("2<sup>n + 1</sup>", "2^(n + 1)"),
    ("in 1961<sup>2</sup>.", "in 1961^2."),
    ('in 1961<sup><a href="#n2">2</a></sup>.', "in 1961 [2]."),
    ('in 1961<a href="#n2"><sup>2</sup></a>.', "in 1961 [2]."),
    ('in 1961<sup class="reference">[2]</sup> only', "in 1961 [2] only"),
    ("the 1<sup>st</sup> of May", "the 1st of May"),
    ("H<sub>2</sub>O", "H2O"),
    ("10<sub>2</sub> is two", "10_2 is two"),
    ("log<sub>2</sub>8", "log2 8"),
]


@pytest.mark.parametrize(("markup", "expected"), RAISED)
def test_what_is_raised_is_no_part_of_a_number(tmp_path, markup, expected):
    assert text_of(tmp_path / "a.html", f"<p>{markup}</p>").strip() == expected


def test_numbers_of_books_and_word_documents(tmp_path):
    book = epub(tmp_path / "a.epub", "<p>10<sup>3</sup> in 1961<sup><a href='#n'>2</a></sup></p>")
    assert blocks(book) == ["10^3 in 1961 [2]"]
    raised = '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>3</w:t></w:r>'
    body = f"<w:p><w:r><w:t>10</w:t></w:r>{raised}</w:p>"
    assert blocks(docx(tmp_path / "a.docx", body)) == ["10^3"]


def test_items_of_a_list_keep_their_numbers(tmp_path):
    page = "<ol start=3><li>a<li value=7>b<li><p>c</p><ul><li>d</ul></ol>"
    ((document,), _) = read(write(tmp_path / "a.html", page))
    assert blocks_of(document) == [("li", text) for text in ("3. a", "7. b", "8. c", "- d")]


# Merged cells

HOURS = """<table><thead><tr><th>Day<th>From<th>To</thead>
<tr><td rowspan=2>Saturday<td>9<td>12<tr><td>14<td>18<tr><td>Sunday<td colspan=2>closed
<tr><td colspan=3>In winter</table>"""


def test_merged_cells_of_a_page_are_repeated(tmp_path):
    ((document,), _) = read(write(tmp_path / "a.html", HOURS))
    assert blocks_of(document) == [
        ("th", "Day\tFrom\tTo"),
        ("tr", "Saturday\t9\t12"),
        ("tr", "Saturday\t14\t18"),
        ("tr", "Sunday\tclosed\tclosed"),
        ("p", "In winter"),
    ]


@pytest.mark.parametrize("span", ["99999999999", "-3", "x", "0"])
def test_a_span_is_bounded(tmp_path, span):
    page = f"<table><tr><td rowspan={span} colspan={span}>a<td>b<tr><td>c<td>d</table>"
    assert len(text_of(tmp_path / "a.html", page)) < 1000


def test_merged_cells_of_a_word_document_are_repeated(tmp_path):
    def cell(text, merge=""):
        return f"<w:tc><w:tcPr>{merge}</w:tcPr>{paragraph(text)}</w:tc>"

    rows = [
        cell("Day") + cell("Time"),
        cell("Saturday", '<w:vMerge w:val="restart"/>') + cell("9"),
        cell("", "<w:vMerge/>") + cell("14"),
    ]
    body = f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"
    expected = ["Day\tTime", "Saturday\t9", "Saturday\t14"]
    assert blocks(docx(tmp_path / "a.docx", body)) == expected


# Word documents


def test_a_formula_is_written_in_a_line_and_hidden_text_is_left_out(tmp_path):
    def part(name, text):
        return f"<m:{name}><m:r><m:t>{text}</m:t></m:r></m:{name}>"

    half = f"<m:f>{part('num', 'a+b')}{part('den', '2')}</m:f>"
    square = f"<m:sSup>{part('e', 'x')}{part('sup', '2')}</m:sSup>"
    formula = f'<m:oMath xmlns:m="{MATH}">{half}{square}</m:oMath>'
    hidden = "<w:r><w:rPr><w:vanish/></w:rPr><w:t>draft</w:t></w:r>"
    body = f"<w:p><w:r><w:t>It is </w:t></w:r>{formula}{hidden}<w:r><w:t>.</w:t></w:r></w:p>"
    assert blocks(docx(tmp_path / "a.docx", body)) == ["It is (a+b)/2x^2."]


def test_the_numbers_of_paragraphs_are_counted_as_word_does(tmp_path):
    def level(number, form, text):
        return (
            f'<w:lvl w:ilvl="{number}"><w:start w:val="1"/><w:numFmt w:val="{form}"/>'
            f'<w:lvlText w:val="{text}"/></w:lvl>'
        )

    levels = level(0, "decimal", "%1.") + level(1, "lowerRoman", "%1.%2)")
    numbering = (
        f'<w:numbering xmlns:w="{WORD}"><w:abstractNum w:abstractNumId="4">{levels}'
        '</w:abstractNum><w:num w:numId="7"><w:abstractNumId w:val="4"/></w:num></w:numbering>'
    )

    def item(text, depth):
        place = f'<w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="7"/></w:numPr>'
        return f"<w:p><w:pPr>{place}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"

    body = item("One", 0) + item("a", 1) + item("b", 1) + paragraph("Between.") + item("Two", 0)
    members = docx_members(body) | {"word/numbering.xml": numbering}
    path = archive(tmp_path / "a.docx", members)
    ((document,), _) = read(path)
    assert blocks_of(document) == [
        ("li", "1. One"),
        ("li", "1.i) a"),
        ("li", "1.ii) b"),
        ("p", "Between."),
        ("li", "2. Two"),
    ]


# PDF


def test_headers_footers_and_page_numbers_are_left_out(tmp_path):
    def page(number, text):
        return f"Morvik Ferry Handbook\n{text}\nPage {number} of 3\n{number}"

    ferry = "The ferry leaves every hour from the quay in the north of Morvik, and carries cars."
    first = (
        f"{ferry}\n{ferry}\nIt is full in summer, when the town goes to the islands, and only two"
    )
    second = f"after that open. In 2019 it was rebuilt.\n{ferry}\n{ferry}"
    data = pdf(page(1, first), page(2, second), page(3, f"{ferry}\n{ferry}\n{ferry}"))
    ((document,), _) = read(write(tmp_path / "a.pdf", data))
    text = document.text
    assert "and only two after that open. In 2019" in text
    assert text.startswith("Morvik Ferry Handbook\n\nThe ferry")
    assert text.count("Handbook") == 1
    assert "Page" not in text
    assert [name for _, name, _ in places_of(document)] == ["page 1", "page 2", "page 3"]
    assert [kind for kind, _ in blocks_of(document)][:3] == ["h2", "p", ""]


def test_lines_that_only_resemble_each_other_stay(tmp_path):
    pages = [f"Depth {number} m\nThe wreck lies {number} metres deep." for number in (7, 31, 12)]
    text = text_of(tmp_path / "a.pdf", pdf(*pages))
    assert all(f"Depth {number} m" in text for number in (7, 31, 12))
    assert text_of(tmp_path / "b.pdf", pdf("Closed.", "Closed.")).split() == ["Closed."] * 2


# Letters that nobody sees


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "The har\u00adbour\u200b is \ufeffopen\u2060."),
        ("a.md", "The har\u00adbour\u200b is \ufeffopen\u2060."),
        ("a.html", "<p>The har&shy;bour&#8203; is &#65279;open&#8288;."),
        ("a.jsonl", '{"text": "The har\u00adbour\u200b is \ufeffopen\u2060."}'),
        (
            "a.eml",
            "Subject: a\nContent-Type: text/plain; charset=utf-8\n\nThe har\u00adbour is open.",
        ),
    ],
)
def test_soft_hyphens_and_characters_of_no_width_are_left_out(tmp_path, name, content):
    assert text_of(tmp_path / name, content).strip().endswith("The harbour is open.")


def test_joiners_of_letters_stay(tmp_path):
    text = "\u0645\u06cc\u200c\u062e\u0648 👩\u200d🚒"
    assert text_of(tmp_path / "a.txt", text) == text


# Mail


@pytest.mark.parametrize(
    "plain", ["Please view this message in HTML.", "The ferry leaves at nine."]
)
def test_of_two_forms_of_a_letter_the_real_one_is_read(tmp_path, plain):
    letter = EmailMessage()
    letter["Subject"] = "Ferry"
    letter.set_content(plain)
    real = "The ferry leaves at nine." + " It waits for nobody, not even the mayor." * (
        plain.startswith("Please") * 3
    )
    letter.add_alternative(f"<p>{real}</p>", subtype="html")
    text = text_of(tmp_path / "a.eml", bytes(letter))
    assert "leaves at nine" in text
    assert "Please" not in text


def test_a_header_in_raw_latin_1_is_read(tmp_path):
    letter = "Subject: Grüße aus Köln\nFrom: Jürgen <j@old.example>\n\nText.\n".encode("latin-1")
    ((document,), _) = read(write(tmp_path / "a.eml", letter))
    assert document.title == "Grüße aus Köln"
    assert "From: Jürgen" in document.text


# Names


def test_a_file_is_found_however_its_accents_are_written(model, tokenizer, tmp_path):
    name = "café.txt"
    write(tmp_path / "in" / unicodedata.normalize("NFD", name), "The café opens at nine.")
    write(tmp_path / "in" / "b.txt", "Another text.")
    documents = list(read_corpus([str(tmp_path / "in")]))
    assert [one.id for one in documents] == ["b.txt", name]
    build_datastore(model, tokenizer, documents, tmp_path / "s", calibrate=False)
    found = Datastore(tmp_path / "s").documents
    assert found.named(unicodedata.normalize("NFD", name)) == found.named(name) == [1]
    left = remove_documents(tmp_path / "s", [unicodedata.normalize("NFD", name)])
    assert list(left.manifest.removed) == [1]
