"""Files made to hang, to fill the memory or to break a library: each is refused in one line."""

import gzip
import sys
import threading
import zipfile
import zlib

import pytest
from corpus_files import failure, read, write
from office_files import ENTITIES, archive, docx, docx_members, notebook, paragraph, pdf, pptx

from knn_logits.corpus import extracting
from knn_logits.corpus.extracting import Extractor
from knn_logits.corpus.parsers.blocks import Block, RefusedError


def refused(path, **options):
    """Why a file is refused; a good one after it is read all the same."""
    good = write(path.parent / "good.pdf", pdf("Good."))
    documents, skipped = read(str(path), good, **options)
    assert [one.text.strip() for one in documents] == ["Good."]
    ((name, reason),) = skipped
    assert name == str(path)
    assert "\n" not in reason
    return reason


def test_a_zip_bomb_is_refused_by_its_directory(tmp_path):
    path = tmp_path / "bomb.docx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in docx_members(paragraph("x")).items():
            file.writestr(name, content)
        with file.open("word/media/a", "w") as member:
            for _ in range(80):
                member.write(b"\0" * (1 << 20))
    assert "as with a zip bomb" in refused(path)


@pytest.mark.parametrize(("name", "make"), [("a.docx", docx), ("a.pptx", pptx)])
def test_a_bomb_of_entities_is_refused(tmp_path, name, make):
    path = tmp_path / name
    body = paragraph("&a9;") if make is docx else [(["&a9;"], [])]
    make(path, body, begin=ENTITIES)
    if make is pptx:
        members = zipfile.ZipFile(path)
        content = {one: members.read(one) for one in members.namelist()}
        content["ppt/slides/slide1.xml"] = (ENTITIES + "<x>&a9;</x>").encode()
        archive(path, content)
    reason = refused(path)
    assert "amplification" in reason or "entities" in reason


def test_an_entity_does_not_read_a_file_of_this_machine(tmp_path):
    secret = write(tmp_path / "secret", "SECRET")
    entity = f'<!DOCTYPE x [<!ENTITY s SYSTEM "file://{secret}">]>'
    docx(tmp_path / "a" / "a.docx", paragraph("before &s; after"), begin=entity)
    pptx(tmp_path / "a" / "b.pptx", [(["before &s; after"], [])])
    page = f'{entity}<html><body>&s; <iframe src="file://{secret}">x</iframe></body></html>'
    write(tmp_path / "a" / "c.html", page)
    write(tmp_path / "a" / "z.txt", "good")
    assert not any("SECRET" in one.text for one in read(str(tmp_path / "a"))[0])


def test_gzip_that_unpacks_to_far_more_than_text_does_is_refused(tmp_path):
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(gzip.compress(b"a" * (70 << 20), 9))
    assert "as with a bomb" in refused(path)


def test_a_page_that_unpacks_to_a_flood_is_refused(tmp_path):
    packer = zlib.compressobj(9)
    flood = b"".join(packer.compress(b"(a) Tj " * 150_000) for _ in range(120)) + packer.flush()
    path = tmp_path / "bomb.pdf"
    path.write_bytes(pdf(streams=[flood]))
    reason = refused(path)
    assert reason.startswith("damaged: page 1: ")


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.pdf", b"", "empty"),
        ("a.pdf", b"%PDF-1.7 and no more", "damaged"),
        ("a.pdf", b"words", "damaged"),
        ("a.pdf", pdf("Text")[:300], "damaged"),
        ("a.docx", b"PK\x03\x04 and no more", "not a zip archive"),
        ("a.docx", b"\xd0\xcf\x11\xe0" + b"\0" * 100, "encrypted, or in an older Office"),
        ("a.pptx", b"words", "not a zip archive"),
        ("a.epub", b"words", "not a zip archive"),
        ("a.ipynb", b"{", "not a Jupyter notebook"),
        ("a.ipynb", b"[]", "not a Jupyter notebook"),
        ("a.ipynb", b"[" * 100_000, "nested too deeply"),
        ("a.eml", b"\n", "not an e-mail"),
        ("a.mbox", b"words", "not a mailbox"),
        ("a.rtf", b"words", "not rich text"),
        ("a.html", b"a\0b" * 9, "NUL"),
        ("a.png", b"\x89PNG\r\n\x1a\n\0", "an image: it holds no text"),
        ("a.doc", b"\xd0\xcf\x11\xe0" + b"\0" * 9, "an older Word document: save it as .docx"),
        ("a.xlsx", b"PK\x03\x04\0", "a spreadsheet: save its sheets as .csv"),
        ("a.zip", b"PK\x03\x04\0", "packed: unpack it first"),
    ],
)
def test_a_file_that_is_not_read_says_why(tmp_path, name, data, reason):
    path = tmp_path / name
    path.write_bytes(data)
    assert reason in refused(path)
    assert str(path) in failure(str(path), strict=True)


# The child process


def parts(extractor, path, kind="html"):
    return list(extractor.parts(path, kind, None))


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("<p>Text.</p>")
    return path


def test_one_child_reads_many_files_and_is_replaced_when_it_dies(page):
    with Extractor() as extractor:
        assert isinstance(parts(extractor, page)[-1], Block)
        first = extractor._child.pid
        parts(extractor, page)
        assert extractor._child.pid == first
        extractor._child.kill()
        extractor._child.wait()
        assert parts(extractor, page)[-1].text.strip() == "Text."
        assert extractor._child.pid != first


def test_a_reader_that_stops_leaves_no_child_with_half_an_answer(page):
    page.write_text("".join(f"<h1>{number}</h1><p>Text.</p>" for number in range(100)))
    with Extractor() as extractor:
        reading = extractor.parts(page, "html", None)
        next(reading)
        reading.close()
        assert len(parts(extractor, page)) == 101
    assert extractor._child is None


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems may not limit it")


@on_linux
def test_a_file_that_fills_the_memory_costs_its_child_alone(tmp_path, page):
    big = tmp_path / "big.ipynb"
    big.write_text(notebook(("code", "x" * (64 << 20))))
    with Extractor(memory=96 << 20) as extractor:
        with pytest.raises(RefusedError, match=r"more than 0\.0938 GiB"):
            parts(extractor, big, "notebook")
        assert parts(extractor, page)[-1].text.strip() == "Text."


class _Silent(Extractor):
    """Its child never answers."""

    def _started(self):
        known, extracting._START = extracting._START, "import time; time.sleep(600)"
        try:
            return super()._started()
        finally:
            extracting._START = known


def test_a_child_that_does_not_answer_is_killed(page):
    with (
        _Silent(patience=0.2) as extractor,
        pytest.raises(RefusedError, match=r"reading it took longer than 0 s"),
    ):
        parts(extractor, page)


def test_the_time_that_a_reader_takes_is_not_the_child_s(page):
    page.write_text("<h1>a</h1><h1>b</h1>")
    turned = threading.Event()
    with Extractor(longest=30) as extractor:
        for _ in extractor.parts(page, "html", None):
            turned.wait(0.05)
        assert extractor._child is not None


@pytest.mark.parametrize(
    "answer", ["no JSON", "[]", "{}", '["block", 1, "", "", 0]', '["begin"]', '["other"]', ""]
)
def test_a_child_that_answers_nonsense_is_not_believed(page, monkeypatch, answer):
    code = f"import sys; sys.stdin.readline(); print({answer!r})"
    monkeypatch.setattr(extracting, "_START", code)
    with Extractor() as extractor, pytest.raises(RefusedError, match="crashed"):
        parts(extractor, page)


def test_more_text_than_a_document_has_is_refused(page, monkeypatch):
    monkeypatch.setattr(extracting, "_MOST_TEXT", 100)
    monkeypatch.setattr(extracting, "_MOST_TEXT_A_BYTE", 0)
    page.write_text("<p>" + "words " * 100)
    with Extractor() as extractor, pytest.raises(RefusedError, match="more text than a document"):
        parts(extractor, page)


@on_linux
def test_the_child_can_write_no_file(page, tmp_path, monkeypatch):
    path = tmp_path / "written"
    writes = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
        "from knn_logits.corpus.parsers.serve import limit; limit(1 << 30); "
        f"file = open({str(path)!r}, 'w'); file.write('text'); file.flush()"
    )
    monkeypatch.setattr(extracting, "_START", writes)
    with Extractor() as extractor, pytest.raises(RefusedError, match="crashed"):
        parts(extractor, page)
    assert path.read_text() == ""


# Without the extra


def test_without_the_extra_one_line_names_it(tmp_path, monkeypatch):
    blocked = "import sys; sys.modules['pypdf'] = None; " + extracting._START
    monkeypatch.setattr(extracting, "_START", blocked)
    path = write(tmp_path / "a.pdf", pdf("Text."))
    documents, skipped = read(path, write(tmp_path / "b.txt", "good"))
    assert [one.id for one in documents] == ["b.txt"]
    assert skipped == [
        (path, 'its format needs more packages: pip install "knn-logits[documents]"')
    ]
