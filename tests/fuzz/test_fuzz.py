"""Readers of files from strangers, given inputs that are changed at random.

`FUZZ=1000 pytest tests/fuzz` gives each of them this number of inputs. They depend on their number
alone, so that a failure comes again.
"""

import gzip
import io
import json
import os
import random
import shutil
import zipfile
import zlib
from contextlib import suppress
from email.message import EmailMessage

import office_files as office
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from folders import refit, write_content

from knn_logits import Datastore, KNNConfig, build_index, explain, read_corpus
from knn_logits.building.indexing import build_suffixes, cluster
from knn_logits.building.removing import remove_documents
from knn_logits.building.updating import add_documents
from knn_logits.corpus import reading, sandbox
from knn_logits.corpus.rows import display_name
from knn_logits.errors import KNNLogitsError
from knn_logits.search.retriever import Retriever
from knn_logits.store import layout

NUMBER = int(os.environ.get("FUZZ", "3"))
LARGEST = 1 << 18
# Bytes that mean something to one reader or another.
WORDS = [
    b"\0", b"\n\n", b"\r", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b" " * 999, b"[" * 500,
    b"{" * 500, b"<div>" * 300, b"<!--", b"<!DOCTYPE x [<!ENTITY a 'b'>]>", b"&a;", b"</",
    b"<table><tr><td>", b"<?xml", b"<script>", b"&#0;", b"# ", b"```", b"---\n", b"Subject: ",
    b"Content-Type: multipart/mixed; boundary=a\n\n--a\n", b"=?utf-8?b?////?=", b"charset=utf-7",
    b"<</", b">>", b"endobj", b"stream\n", b"endstream", b"/Length 999999999", b"/Kids[2 0 R]",
    b"/Parent 4 0 R", b"/Prev 0", b"/Count -1", b"/Filter[/FlateDecode/LZWDecode]", b"q " * 500,
    b"/DecodeParms<</Predictor 15/Columns 99999>>", b"/Encrypt 1 0 R", b"xref\n0 999999\n", b"NaN",
    b"1e999", b"9" * 400, b"-1", b'"text":', b"\x93NUMPY\x01\x00", b"PAR1", b"PK\x03\x04",
    b"\x1f\x8b\x08\0",
]  # fmt: skip
VALUES = [0, 1, -1, 7, 2**31, 2**63, 10**30, 0.5, 1e308, True, None, "5", [], {}, "\ud800", "../x"]
VALUES += ["x" * 10**5, ["a"] * 5000, {"a": {"b": [1]}}]


def changed(data, chance):
    """Bytes with some changes."""
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        place = chance.randrange(len(data) + 1)
        last = place + chance.choice([1, 4, 16, 64, 256, 4096])
        part = data[place:last]
        new = {
            "word": data[:place] + chance.choice(WORDS) + data[place:],
            "without": data[:place] + data[last:],
            "repeated": data[:place] + part * min(20_000, LARGEST // (len(part) + 1)) + data[last:],
            "noise": data[:place] + chance.randbytes(len(part)) + data[last:],
            "number": data[:place] + b"\xff\xff\xff\x7f" + data[place + 4 :],
            "cut": data[:place],
        }
        data = new[chance.choice([*new])][: 4 * LARGEST]
    return data


def changed_within(data, chance):
    """Changes what is packed, or a value of JSON; any other bytes as they are."""
    if data.startswith(b"\x1f\x8b"):
        return gzip.compress(changed(gzip.decompress(data), chance), 1)
    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            members = {name: file.read(name) for name in file.namelist()}
        name = chance.choice([*members])
        members[name] = changed(members[name], chance)
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in members.items():
                file.writestr(name, content)
        return out.getvalue()
    with suppress(ValueError):
        content = holder = json.loads(data)
        while isinstance(holder, (dict, list)) and holder:
            key = chance.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
            inner = holder[key]
            if not isinstance(inner, (dict, list)) or not inner or chance.random() < 0.2:
                holder[key] = chance.choice(VALUES)
                break
            holder = inner
        return json.dumps(content).encode()
    return changed(data, chance)


def inputs(name, seeds):
    """The seeds, and as many changed ones."""
    yield from seeds
    for number in range(NUMBER):
        chance = random.Random(f"{name} {number}")
        yield chance.choice([changed, changed_within])(chance.choice(seeds), chance)


TEXT = "# The crane\n\nWhen error code E42 appears, open the winch cover.\n\n- oil of grade nine\n"
ROWS = [
    {"text": TEXT, "id": "a", "title": "Crane", "uri": "https://example.org/a", "n": [1, {"b": 2}]},
    {"text": "Second text. É", "id": "7", "title": None},
]
HTML = (
    b"<!doctype html><html><head><title>Crane</title><meta charset=utf-8><style>p{}</style></head>"
    b"<body><nav>x</nav><h1 id=a>Winch</h1><p>Open <b>it</b> &amp; wait.<br>Now.</p><ul>"
    b"<li>one<li>two</ul><table><tr><td>a<td>b</table><pre>if x:\n  y</pre></body></html>"
)
MARKDOWN = (
    b"---\ntitle: x\n---\n# One\n\nText *a* `b`.\n\nTwo\n---\n\n```py\n# no\n```\n\n"
    b"| a | b |\n|---|---|\n> quote\n\n### Three ###\n"
)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def seeds_of(place):
    """Files that are read, by their names."""
    letter = EmailMessage()
    letter["Subject"], letter["From"] = "Winch é", "a@example.org"
    letter.set_content("The winch.\n")
    letter.add_alternative("<p>The <b>winch</b>.</p>", subtype="html")
    letter.add_attachment(b"x" * 99, maintype="image", subtype="png", filename="a.png")
    word = office.paragraph("Winch", "berschrift1") + office.table(("code",), ("E42",))
    office.docx(place / "word", word)
    office.epub(place / "book", "<h1>One</h1><p>Text.</p>", "<p>Two &amp; three.</p>")
    office.encrypted_pdf(place / "locked", "", "Text.")
    rows = [{"text": row["text"], "n": [1, None]} for row in ROWS * 9]
    pq.write_table(pa.Table.from_pylist(rows), place / "table", row_group_size=7)
    written = {path.name: path.read_bytes() for path in place.iterdir()}
    drawn = zlib.compress(b"BT /F1 12 Tf [(Wi) -200 (nch)] TJ T* (a) ' /X Do ET BI /W 1 ID x EI")
    notebook = office.notebook(("markdown", "# One\n\nText."), ("code", "x = 1\n"))
    return {
        "a.pdf": [office.pdf(TEXT, "Page 2."), office.pdf(streams=[drawn]), written["locked"]],
        "a.docx": [written["word"]],
        "a.epub": [written["book"]],
        "a.ipynb": [notebook.encode()],
        "a.eml": [letter.as_bytes(), b"Subject: a\n\nText.\n"],
        "a.html": [HTML],
        "a.md": [MARKDOWN],
        "a": [TEXT.encode(), TEXT.encode("utf-16"), "Käse\r\nÖl\r\n".encode("latin-1") * 20],
        # The last one broke the reader once.
        "a.csv": [b"a,b\n1,x\n", b'"a;b";c\r\n', b"\xde\xa5\xf1g"],
        "a.jsonl": [LINES],
        "a.json": [json.dumps(ROWS).encode(), json.dumps(ROWS[0]).encode()],
        "a.jsonl.gz": [gzip.compress(LINES)],
        "a.gz": [gzip.compress(TEXT.encode())],
        "a.parquet": [written["table"]],
    }


def test_documents(tmp_path_factory, monkeypatch):
    """Each file is read, skipped or refused in one line, in bounded time and memory."""
    place = tmp_path_factory.mktemp("read")
    with sandbox.Sandbox() as kept:
        # One child for all of them.
        monkeypatch.setattr(sandbox.Sandbox, "__exit__", lambda *_: None)
        monkeypatch.setattr(reading, "Sandbox", lambda beat: kept)

        def skip(_, reason):
            assert display_name(reason) == reason
            assert "GiB" not in reason
            assert "took longer" not in reason

        for name, seeds in seeds_of(tmp_path_factory.mktemp("seeds")).items():
            for data in inputs(name, seeds):
                (place / name).write_bytes(data)
                try:
                    for document in read_corpus([str(place / name)], on_skip=skip):
                        checked(document)
                except KNNLogitsError as error:
                    check_line(str(error))
        kept.close()


def check_line(message):
    assert len(message.splitlines()) == 1


def checked(document):
    """What holds of every document, whatever its file."""
    document.text.encode()
    assert document.text.strip()
    starts = [block.start for block in document.blocks]
    assert starts == sorted(starts)
    assert all(0 <= start < len(document.text) for start in starts)
    assert not any("\n" in block.place for block in document.blocks)


def test_datastores(model, tokenizer, store, tmp_path):
    """Changes one file of a datastore, with a hash that fits; the store is used, or refused."""

    def search(folder):
        opened = Datastore(folder)
        queries = torch.zeros(2, opened.manifest.dim)
        queries[1] = float("nan")
        config = KNNConfig(k=min(opened.manifest.settings.k, 64))
        found = Retriever(opened, config).search(queries)
        for entry in (0, len(opened) - 1, *found.ids[found.mask][:4].tolist()):
            assert 0 <= opened.passage(entry).token < 1 << 31

    def trace(folder):
        for step in explain(model, tokenizer, Datastore(folder), "The winch cover")[0].tokens:
            assert 0.0 <= step.p <= 1.0

    uses = [
        search,
        trace,
        lambda folder: remove_documents(folder, ["2"]),
        lambda folder: add_documents(model, tokenizer, folder, ["A new winch cover."]),
        lambda folder: cluster(folder, 4),
    ]
    whole, folder = tmp_path / "whole", tmp_path / "s"
    shutil.copytree(store.folder, whole)
    build_index(Datastore(whole), "IVF4,SQ8")
    cluster(whole, 6)
    build_suffixes(whole)
    for name in sorted(path.name for path in whole.iterdir() if path.name != layout.LOCK):
        for data in inputs(name, [(whole / name).read_bytes()]):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
            (folder / name).write_bytes(data)
            with suppress(ValueError, AttributeError, RecursionError, UnicodeError):
                if name == layout.MANIFEST:
                    write_content(folder, json.loads(data))
                else:
                    refit(folder)
            try:
                uses[zlib.crc32(data) % len(uses)](folder)
            except KNNLogitsError as error:
                check_line(str(error))
