"""Faults of other projects' document readers, from their public bug reports, tried here."""

import json

import pytest
from corpus_files import read, text_of, write
from office_files import archive, docx


def book(path, page, href, name):
    container = "urn:oasis:names:tc:opendocument:xmlns:container"
    members = {
        "META-INF/container.xml": f'<container xmlns="{container}"><rootfiles><rootfile '
        'full-path="p.opf"/></rootfiles></container>',
        "p.opf": '<package xmlns="http://www.idpf.org/2007/opf"><manifest><item id="a" '
        f'href="{href}"/></manifest><spine><itemref idref="a"/></spine></package>',
        name: page,
    }
    archive(path, members)


PAGES = {
    # adbar/trafilatura 553
    "<pre><b>def</b> <i>f</i>(x):\n    <b>return</b> x\n\n<i>y</i>  = 2</pre>": (
        "def f(x):\n    return x\n\ny  = 2"
    ),
    # Unstructured-IO/unstructured 2362
    "<div>shares at $<div style='display: inline;'><b>5.22</b></div> per share</div>": (
        "shares at $5.22 per share"
    ),
    # Unstructured-IO/unstructured 2520
    "<pre><b>A</b> = Y<br><b>B</b> = 1<br></pre>": "A = Y\nB = 1",
    # Unstructured-IO/unstructured 3899
    "<table><tr><th>a<th>b</tr><tr><td>1st.<br/>2nd.<td>x</table>": "a\tb\n1st. 2nd.\tx",
    # Unstructured-IO/unstructured 2205
    "<table><tr><td>A<td><table><tr><td>1<td>2</table></tr></table>": "A\t1 2",
    # A cell outside of a row
    "<p>one<td>cell<b>bold<p>five": "one\n\ncellbold\n\nfive",
    # Unstructured-IO/unstructured 4478
    "<p><math><mi>x</mi><mo>=</mo><msup><mi>n</mi><mn>2</mn></msup></math> holds": "x=n^2 holds",
    "<p><math><mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>2</mn></mfrac></math>": (
        "(a+b)/2"
    ),
    "<math><semantics><msqrt><mi>n</mi></msqrt><annotation>x</annotation></semantics>": "√(n)",
}


@pytest.mark.parametrize("page", PAGES)
def test_pages(tmp_path, page):
    assert text_of(tmp_path / "a.html", page).strip() == PAGES[page]


def test_csv(tmp_path):
    # crewAIInc/crewAI 7466
    text = text_of(tmp_path / "bom.csv", '\ufeff"last, first",age\n"Doe, Jane",30\n')
    assert text.endswith("- last, first: Doe, Jane; age: 30\n")
    # alan-turing-institute/CleverCSV 21
    text = text_of(tmp_path / "long.csv", f'name,text\na,"{"word " * 40_000}"\nb,short\n')
    assert text.endswith("- name: b; text: short\n")


def test_mail(tmp_path):
    plain = b"From: a@x.org\r\nContent-Type: text/plain\r\n\r\nCaf\xc3\xa9\r\n"
    # jstedfast/MimeKit 870
    assert text_of(tmp_path / "a.eml", plain) == "From: a@x.org\n\nCafé\n"
    # use-agent-os/agent-os 2787
    forwarded = (
        b"From: a@x.org\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=B\r\n\r\n"
        b"--B\r\nContent-Type: text/plain\r\n\r\nSee below.\r\n--B\r\nContent-Type: message/rfc822"
        b"\r\nContent-Disposition: attachment\r\n\r\nFrom: b@x.org\r\n\r\nIt is red.\r\n--B--"
    )
    expected = "From: a@x.org\n\nSee below.\n\nFrom: b@x.org\n\nIt is red."
    assert text_of(tmp_path / "b.eml", forwarded).rstrip() == expected


LATIN = '<?xml version="1.0" encoding="iso-8859-1"?><html><p>Café</p></html>'.encode("latin-1")
BOOKS = [
    ("<p>A chapter.</p>", "one.xhtml#start", "one.xhtml", "A chapter."),
    (LATIN, "one.xhtml", "one.xhtml", "Café"),  # w3c/epubcheck 34
    # readium/kotlin-toolkit 639
    ("<p>A chapter.</p>", "i%CC%82n.xhtml", "în.xhtml", "A chapter."),
]


@pytest.mark.parametrize(("page", "href", "name", "text"), BOOKS)
def test_books(tmp_path, page, href, name, text):
    book(tmp_path / "a.epub", page, href, name)
    assert text_of(tmp_path / "a.epub").strip() == text


KINDS = ["separate", "end", "end", "begin", "separate"]


def test_fields_of_word(tmp_path):
    shown = "<w:fldSimple><w:r><w:t>3 May</w:t></w:r></w:fldSimple>"
    body = f"<w:p><w:r><w:t>On </w:t></w:r>{shown}<w:r><w:t>, noon</w:t></w:r></w:p>"
    # mwilliamson/python-mammoth 69
    assert text_of(docx(tmp_path / "a.docx", body)).strip() == "On 3 May, noon"
    orphans = "".join(f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in KINDS)
    body = f"<w:p><w:r><w:t>Before</w:t></w:r>{orphans}<w:r><w:t> after</w:t></w:r></w:p>"
    # mwilliamson/python-mammoth 172
    assert text_of(docx(tmp_path / "b.docx", body)).strip() == "Before after"


def test_a_comment_in_code_is_no_heading(tmp_path):
    # deepset-ai/haystack 11011
    path = write(tmp_path / "a.md", "# Head\n\n```sh\n# comment\n```\n\n    # indented\n")
    ((document,), _) = read(path)
    assert [block.kind for block in document.blocks if block.kind.startswith("h")] == ["h1"]


def test_separators_of_lines_within_json(tmp_path):
    line = json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False) + "\n"
    assert text_of(tmp_path / "a.jsonl", line) == "a\u2028b\x85c"
