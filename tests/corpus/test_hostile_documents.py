"""Files made to hang, to fill the memory or to break a library: each is refused in one line."""

import gzip
import io
import resource
import sys
import zipfile
from email.policy import EmailPolicy
from pathlib import Path

import pyarrow as pa
import pytest
from corpus_files import failure, read, write, write_table
from growth import grows_faster
from office_files import ENTITIES, docx, docx_members, paragraph, pdf

from knn_logits.corpus import texts
from knn_logits.corpus.parsers import mail, markup


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
    assert "as in a zip bomb" in refused(path)


def test_a_bomb_of_entities_is_refused(tmp_path):
    path = tmp_path / "a.docx"
    docx(path, paragraph("&a9;"), begin=ENTITIES)
    reason = refused(path)
    assert "amplification" in reason or "entities" in reason


def test_an_entity_does_not_read_a_file_of_this_machine(tmp_path):
    secret = write(tmp_path / "secret", "SECRET")
    entity = f'<!DOCTYPE x [<!ENTITY s SYSTEM "file://{secret}">]>'
    docx(tmp_path / "a" / "a.docx", paragraph("before &s; after"), begin=entity)
    page = f'{entity}<html><body>&s; <iframe src="file://{secret}">x</iframe></body></html>'
    write(tmp_path / "a" / "c.html", page)
    write(tmp_path / "a" / "z.txt", "good")
    assert not any("SECRET" in one.text for one in read(str(tmp_path / "a"))[0])


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.pdf", b"", "empty"),
        ("a.pdf", b"%PDF-1.7 and no more", "damaged"),
        ("a.pdf", b"words", "damaged"),
        ("a.pdf", pdf("Text")[:300], "damaged"),
        ("a.docx", b"PK\x03\x04 and no more", "damaged (BadZipFile: File is not a zip file)"),
        ("a.docx", b"\xd0\xcf\x11\xe0" + b"\0" * 100, "encrypted, or in an older Office"),
        ("a.epub", b"words", "damaged (BadZipFile: File is not a zip file)"),
        ("a.ipynb", b"{", "damaged (JSONDecodeError"),
        ("a.ipynb", b"[]", "damaged (TypeError"),
        ("a.ipynb", b"[" * 100_000, "nested too deeply"),
        ("a.eml", b"\n", "not an e-mail"),
        ("a.mbox", b"words", "not read: export each message as .eml"),
        ("a.pptx", b"PK\x03\x04\0", "not read: save it as .pdf"),
        ("a.rtf", b"words", "not read: save it as .docx or .pdf"),
        ("a.vtt", b"WEBVTT", "not read: save what is said as .txt"),
        ("a.mhtml", b"words", "not read: save the page as .html"),
        ("a.html", b"a\0b" * 9, "NUL"),
        ("a.png", b"\x89PNG\r\n\x1a\n\0", "binary: it holds NUL bytes"),
        ("a.doc", b"\xd0\xcf\x11\xe0" + b"\0" * 9, "not read: save it as .docx or .pdf"),
        ("a.xlsx", b"PK\x03\x04\0", "not read: save its sheets as .csv"),
        ("a.zip", b"PK\x03\x04\0", "not read: unpack it first"),
    ],
)
def test_a_file_that_is_not_read_says_why(tmp_path, name, data, reason):
    path = tmp_path / name
    path.write_bytes(data)
    assert reason in refused(path)
    assert reason in failure(str(path))


# Files that unpack to far more than they hold, or that cost more time than text


def test_a_packed_file_is_bounded_however_far_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "MOST_TEXT", 1 << 20)
    rows = b'{"text": "%s"}\n' % (b"a" * (1 << 16)) * 200
    path = write(tmp_path / "bomb.jsonl.gz", gzip.compress(rows, 9))
    documents, ((name, reason),) = read(path)
    assert sum(len(one.text) for one in documents) < 6 << 20
    assert name == path
    assert "as in a zip bomb" in reason
    assert "rows before that were read" in reason


LONG = b'{"text": "a", "more": "%s"}\n' % (b"b" * (1 << 20))


@pytest.mark.parametrize(
    ("name", "begin", "more"),
    [
        ("a.jsonl.gz", b'{"text": "good"}\n', b"\n" * ((2 << 20) + 70)),
        ("a.jsonl.gz", b'{"text": "good"}\n', LONG * 71),
        ("a.txt.gz", b"Text.", b" " * (70 << 20)),
    ],
    ids=["empty lines", "other fields", "blanks"],
)
def test_what_is_packed_beside_texts_is_bounded(tmp_path, name, begin, more):
    path = write(tmp_path / name, gzip.compress(begin + more, 9))
    _, ((_, reason),) = read(path, write(tmp_path / "good.txt", "good"))
    assert "as in a zip bomb" in reason


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json.gz"])
def test_a_row_is_bounded(tmp_path, monkeypatch, name):
    monkeypatch.setattr("knn_logits.corpus.parsers.rows.LONGEST_ROW", 1000)
    rows = b'{"text": "good"}\n' + b'{"text": "%s"}\n' % (b"a" * 1000)
    if name == "a.json.gz":
        rows = b'[{"text": "%s"}]' % (b"a" * 1000)
    path = write(tmp_path / name, gzip.compress(rows) if name.endswith("gz") else rows)
    documents, ((_, reason),) = read(path, write(tmp_path / "b.txt", "good"))
    assert [document.text for document in documents][-1] == "good"
    assert "more than 1,000 bytes" in reason or "line 2 is longer than 1,000 bytes" in reason


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may not limit the memory")
def test_a_table_is_bounded(tmp_path):
    """A dictionary with one text of 60 MB, which every row names."""
    texts = pa.array(["a" * (60 << 20)]).dictionary_encode()
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), texts.dictionary)
    path = write_table(tmp_path / "a.parquet", {"text": column}, compression="zstd")
    assert Path(path).stat().st_size < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    documents, ((_, reason),) = read(path)
    assert len(documents) <= 1
    assert "more text than a document" in reason or "GiB" in reason
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # in KiB


@pytest.mark.parametrize(
    "header",
    [
        "Content-Type: multipart/mixed; boundary=a{}",
        "Content-Disposition: attachment{}",
        "Content-Type: text/plain{}",
    ],
)
def test_a_mail_header_is_read_up_to_a_length(tmp_path, monkeypatch, header):
    lengths, fetch = [], EmailPolicy.header_fetch_parse

    def record(self, name, value):
        lengths.append(len(value))
        return fetch(self, name, value)

    monkeypatch.setattr(EmailPolicy, "header_fetch_parse", record)
    data = f"{header.format('; c=d' * 8_000)}\nSubject: Winch\n\nText.\n".encode()
    parts = list(mail.read(io.BytesIO(data)))
    assert "Winch" in parts[1].text
    # The time to read one grows with the square of its length.
    assert max(lengths) == 10_000


@pytest.mark.parametrize(
    "unit", ["<h1>W<style>p{}</style></head><body><nav>x</nav>", "<h1><a><table><tr><td>"]
)
def test_the_time_of_nested_parts_grows_with_their_number(unit):
    def run(number):
        list(markup.read(io.BytesIO((unit * number).encode())))

    assert not grows_faster(run, 250, 2_000, most=25)  # it was more than 50 times as long
