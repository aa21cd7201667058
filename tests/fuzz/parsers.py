"""The parsers that read what strangers give: documents, datastores, GGUF files."""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
import zlib
from contextlib import ExitStack, suppress
from email.message import EmailMessage
from functools import cache
from pathlib import Path

import above  # noqa: F401 (puts the tests' folders on the path)
import office_files as office
import psutil
from bodies import requests
from running import SECONDS, Target

from knn_logits.corpus.rows import display_name

TEXT = "# The crane\n\nWhen error code E42 appears, open the winch cover.\n\n- oil of grade nine\n"
ROWS = [
    {"text": TEXT, "id": "a", "title": "Crane", "uri": "https://example.org/a", "n": [1, {"b": 2}]},
    {"text": "Second text. É", "id": 7, "title": None},
]


def folder():
    """Where an input lies: in memory, in a folder of this process."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="fuzz-", dir=place))


# Documents


def reads_documents(name):
    """Opens `read_corpus` with one sandbox for all inputs, which a file may end."""

    def open_():
        import atexit
        import shutil

        from knn_logits.corpus import reading, sandbox

        class Kept(sandbox.Sandbox):
            def __exit__(self, *_):
                pass

        place = folder()
        kept = Kept()
        reading.Sandbox = lambda beat: kept
        atexit.register(shutil.rmtree, place)
        path = place / name

        def read(data):
            path.write_bytes(data)
            skipped, before = [], spent(kept.child and kept.child.pid)

            def skip(where, reason):
                skipped.append(where)
                assert display_name(reason) == reason, (where, reason)
                assert "GiB" not in reason, reason
                assert "took longer" not in reason, reason

            corpus = reading.read_corpus([str(path)], on_skip=skip, on_note=lambda *_: None)
            for document in corpus:
                checked(document)
            assert spent(kept.child and kept.child.pid) - before < SECONDS, "the child takes long"
            return "skipped" if skipped else "accepted"

        return read

    return open_


def spent(number):
    """Seconds of processor time of the child that parses; 0 if there is none."""
    try:
        return sum(psutil.Process(number).cpu_times()[:2]) if number else 0.0
    except psutil.Error:
        return 0.0


def checked(document):
    """What holds of every document, whatever its file."""
    document.text.encode()
    assert document.text.strip()
    starts = [place.start for place in document.blocks]
    assert starts == sorted(starts)
    assert all(0 <= start < max(1, len(document.text)) for start in starts)
    assert not any("\n" in place.place for place in document.blocks)


def _written(make, *arguments, **settings):
    """The bytes of a file that a function writes."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "file"
        make(path, *arguments, **settings)
        return path.read_bytes()


def _pdfs():
    plain = [office.pdf(TEXT, "Second page."), office.pdf("(a) Tj" * 50)]
    with ExitStack() as stack:
        try:
            from pypdf import PdfReader, PdfWriter
        except ImportError:
            return plain
        writer = stack.enter_context(PdfWriter(clone_from=PdfReader(io.BytesIO(plain[0]))))
        writer.add_outline_item("Chapter", 0)
        writer.add_metadata({"/Title": "Crane"})
        out = io.BytesIO()
        writer.write(out)
    content = b"BT /F1 12 Tf 20 380 Td [(Wi) -200 (nch)] TJ T* (a) ' /X Do ET BI /W 1 ID x EI"
    open_ = [content, zlib.compress(content * 20)]
    locked = _written(lambda path: office.encrypted_pdf(path, "", "Text."))
    return [*plain, out.getvalue(), office.pdf(streams=[open_[1], open_[1]]), locked]


def _mails():
    message = EmailMessage()
    message["Subject"] = "Winch é"
    message["From"] = "a@example.org"
    message.set_content("The winch.\n")
    message.add_alternative("<p>The <b>winch</b>.</p>", subtype="html")
    message.add_attachment(b"x" * 99, maintype="image", subtype="png", filename="a.png")
    return [message.as_bytes(), b"Subject: a\n\nText.\n"]


HTML = (
    b"<!doctype html><html><head><title>Crane</title><meta charset=utf-8><style>p{}</style></head>"
    b"<body><nav>x</nav><h1 id=a>Winch</h1><p>Open <b>it</b> &amp; wait.<br>Now.</p><ul>"
    b"<li>one<li>two</ul><table><tr><td>a<td>b</table><pre>if x:\n  y</pre>"
    b"<script>1</script></body></html>"
)
MARKDOWN = (
    b"---\ntitle: x\n---\n# One\n\nText *a* `b`.\n\nTwo\n---\n\n```py\n# no\n```\n\n"
    b"| a | b |\n|---|---|\n> quote\n\n### Three ###\n"
)


def _tables():
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "text": [row["text"] for row in ROWS] * 9,
            "id": [str(row["id"]) for row in ROWS] * 9,
            "n": pa.array([1, None] * 9, pa.int32()),
            "tags": [["a", "b"], None] * 9,
        }
    )
    words = table.set_column(0, "text", table["text"].combine_chunks().dictionary_encode())
    made = []
    for one, packing in ((table, "snappy"), (table, "zstd"), (words, "none")):
        out = io.BytesIO()
        pq.write_table(one, out, compression=packing, row_group_size=7)
        made.append(out.getvalue())
    return made


def documents():
    """A target for each format of documents."""
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    book = _written(office.epub, "<h1>One</h1><p>Text.</p>", "<p>Two &amp; three.</p>")
    word = office.paragraph("Winch", "berschrift1") + office.paragraph("Open it.")
    word += office.table(("code", "meaning"), ("E42", "blocked"))
    notebook = office.notebook(("markdown", "# One\n\nText."), ("code", "x = 1\n")).encode()
    plain = [TEXT.encode(), TEXT.encode("utf-16"), "Käse\r\nÖl\r\n".encode("latin-1") * 20]
    listed = [json.dumps(ROWS).encode(), json.dumps(ROWS[0]).encode(), lines]
    given = {
        "pdf": (_pdfs(), "a.pdf", "raw"),
        "docx": ([_written(office.docx, word)], "a.docx", "zip"),
        "epub": ([book], "a.epub", "zip"),
        "ipynb": ([notebook], "a.ipynb", "json"),
        "eml": (_mails(), "a.eml", "raw"),
        "html": ([HTML], "a.html", "raw"),
        "markdown": ([MARKDOWN], "a.md", "raw"),
        "text": (plain, "a", "raw"),
        "csv": ([b"a,b\n1,x\n", b'"a;b";c\r\n'], "a.csv", "raw"),
        "jsonl": ([lines], "a.jsonl", "raw"),
        "json": (listed, "a.json", "json"),
        "gzip": ([gzip.compress(lines), gzip.compress(TEXT.encode())], "a.jsonl.gz", "gzip"),
        "gzip text": ([gzip.compress(one) for one in (TEXT.encode(), HTML)], "a.gz", "gzip"),
        "parquet": (_tables(), "a.parquet", "raw"),
    }
    return [
        Target(name, seeds, reads_documents(file), form)
        for name, (seeds, file, form) in given.items()
    ]


# What a question reads of a document


def _asks():
    from knn_logits.engine.languages import language_of, words_of
    from knn_logits.engine.passages import cut_sentences, heading_name, sentence_span

    def read(data):
        text = data.decode("utf-8", "replace")
        language = language_of(text)
        for kind in ("p", "li", "tr", "pre"):
            for sentence in list(cut_sentences(text, kind, language))[:50]:
                assert sentence_span(text, sentence) is not None
        heading_name(text)
        return "accepted" if words_of(text, language) else "skipped"

    return read


def questions():
    """The functions that cut a document's text for a question."""
    return [Target("ask", [TEXT.encode(), MARKDOWN, "Dr. A. said: 1.5 (e.g. é)".encode()], _asks)]


# Datastores


@cache
def _stores(place):
    import children

    base = Path(place)
    assert children.ends_well(_build_stores, base), "the datastores could not be built"
    return sorted(base.iterdir())


def _build_stores(base):
    import stores

    from knn_logits import build_datastore
    from knn_logits.building.clustering import cluster
    from knn_logits.building.indexing import build_suffixes
    from knn_logits.building.removing import remove_documents

    stores.quiet()
    first = stores.Jobs(6, 6000, "IVF4,SQ8")
    first.build(base / "clustered")
    cluster(base / "clustered", 6)
    build_suffixes(base / "clustered")
    first.gate(base / "clustered")
    exact = stores.Jobs(6, 6000, "exact")
    exact.build(base / "exact")
    remove_documents(base / "exact", ["0-1"])
    build_datastore(
        stores.model(),
        stores.tokenizer(),
        stores.DOCUMENTS[:6],
        base / "on-demand",
        window=stores.WINDOW,
        store_keys=False,
        batch_tokens=stores.BATCH_TOKENS,
    )


def commands():
    """The uses of a datastore, each a function of its folder."""
    import stores
    import torch

    from knn_logits import Datastore, KNNConfig, explain
    from knn_logits.building.clustering import cluster
    from knn_logits.building.removing import compact, remove_documents
    from knn_logits.building.updating import add_documents
    from knn_logits.engine.passages import read_passages
    from knn_logits.hub.push import push_to_hub
    from knn_logits.search.retriever import Retriever

    model, tokenizer, more = stores.model(), stores.tokenizer(), stores.DOCUMENTS[6:7]

    def search(place):
        store = Datastore(place)
        queries = torch.zeros(3, store.manifest.dim)
        queries[1], queries[2] = 1, float("nan")
        config = KNNConfig(k=min(store.manifest.settings.k, 64))
        found = Retriever(store, config).search(queries)
        for entry in (0, len(store) - 1, *found.ids[found.mask][:4].tolist()):
            assert 0 <= store.passage(entry).token < 1 << 31

    def ask(place):
        read_passages(tokenizer, Datastore(place))
        for step in explain(model, tokenizer, Datastore(place), stores.TEXTS[1])[0].tokens:
            assert 0.0 <= step.p <= 1.0, "a probability that is none"

    def shrink(place):
        remove_documents(place, ["0-2"])
        Datastore(compact(place).folder, full=True)

    return [
        search,
        ask,
        shrink,
        lambda place: add_documents(model, tokenizer, place, more, batch_tokens=64),
        stores.Jobs().index,
        lambda place: cluster(place, 4),
        lambda place: push_to_hub(place, "org/name", dry_run=True),
    ]


def reads_store(whole, name, checksum):
    """Uses a datastore of which a file is another, whose hash fits."""

    def open_():
        import atexit
        import shutil

        import stores
        from folders import refit, write_content

        stores.quiet()
        uses = commands()
        place = folder() / "store"
        atexit.register(shutil.rmtree, place.parent)

        def read(data):
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(whole, place)
            (place / name).write_bytes(data)
            if not checksum:
                refit(place)
            else:
                with suppress(ValueError, AttributeError, UnicodeError, RecursionError):
                    write_content(place, json.loads(data))
            uses[zlib.crc32(data) % len(uses)](place)
            return "accepted"

        return read

    return open_


# A shard of keys is read as any other.
_LATER_KEYS = {f"keys-{number:05}" for number in range(1, 10)}


_FORMS = {".json": "json", ".npy": "array", ".safetensors": "array"}


def datastores(place):
    """A target for each file of datastores of several kinds."""
    targets = []
    for whole in _stores(str(place)):
        for path in sorted(whole.iterdir()):
            if path.name.startswith(".") or path.name[:10] in _LATER_KEYS:
                continue
            is_manifest = path.name == "datastore.json"
            form = _FORMS.get(path.suffix, "raw")
            name = f"{whole.name}-{path.name}"
            targets.append(
                Target(name, [path.read_bytes()], reads_store(whole, path.name, is_manifest), form)
            )
    return targets


# GGUF


def _gguf():
    from knn_logits.engine.llama_cpp.model import GGUFModel

    path = folder() / "a.gguf"

    def read(data):
        path.write_bytes(data)
        GGUFModel(path)
        return "accepted"

    return read


def gguf():
    """A GGUF file, whose header and weights llama.cpp reads in the process itself."""
    import stores
    from gguf_files import tiny, write_gguf

    def small(path):
        write_gguf(path, tiny("llama", dim=16, layers=1), stores.tokenizer())

    return [Target("gguf", [_written(small)], _gguf, may_crash=True)]


def every(place):
    """All targets; datastores are built in a folder."""
    exact = next(path for path in _stores(str(place)) if path.name == "exact")
    return [*documents(), *questions(), *datastores(place), *requests(exact), *gguf()]
