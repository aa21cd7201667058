"""Writes corpora on disk, and reads them."""

import gzip
import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from knn_logits.corpus.reading import read_corpus
from knn_logits.errors import CorpusError


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def write_lines(path, rows):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return write(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def write_table(path, columns, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def read(*paths, **options):
    """Reads a corpus, and returns its documents and the parts that were skipped."""
    skipped = []
    documents = read_corpus(
        paths, on_skip=lambda name, reason: skipped.append((name, reason)), **options
    )
    return list(documents), skipped


def places_of(document):
    """The starts, names and fragments of a document's places."""
    return [(one.start, one.place, one.fragment) for one in document.blocks if one.place]


def blocks_of(document):
    """The kinds and texts of a document's blocks."""
    ends = [one.start for one in document.blocks[1:]] + [len(document.text)]
    return [
        (one.kind, document.text[one.start : end].strip("\n"))
        for one, end in zip(document.blocks, ends, strict=True)
    ]


def text_of(path, content=None):
    """The text of a file's only document, of which nothing was skipped or noted."""
    if content is not None:
        write(path, content)
    notes = []
    documents, skipped = read(str(path), on_note=lambda *note: notes.append(note))
    assert (skipped, notes) == ([], [])
    (document,) = documents
    return document.text


def failure(*paths, **options):
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(paths, **options))
    message = str(caught.value)
    assert "\n" not in message
    return message


def digits(n):
    # The digits compress badly, so rows before a damaged place of a file can still be read.
    return hashlib.sha512(str(n).encode()).hexdigest()


def lines_of(count):
    return [{"text": f"line {n} {digits(n)}", "id": str(n)} for n in range(count)]
