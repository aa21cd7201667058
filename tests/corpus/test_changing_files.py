"""Files that change while they are read: what was read stays, and no error reaches the user."""

import gzip
import json
import os
from pathlib import Path

import pytest
from corpus_files import digits, write_table

from knn_logits.corpus.reading import read_corpus
from knn_logits.errors import KNNLogitsError

LINE = "The crane lifts twelve crates an hour, and then it rests.\n"
ROWS = [json.dumps({"text": f"{LINE}{number}{digits(number)}"}) + "\n" for number in range(25_000)]


def changed_after_the_first_document(path, change):
    """Reads a file, which changes after its first document; returns all, and what was said."""
    said, documents = [], []
    try:
        for document in read_corpus([str(path)], on_skip=lambda *skip: said.append(skip[1])):
            if not documents:
                change(path)
            documents.append(document)
    except KNNLogitsError as error:  # a broken row of a file is named, and ends the reading
        said.append(str(error))
    return documents, said


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def emptied(path):
    os.truncate(path, 0)


def grown(path):
    with path.open("ab") as file:
        file.write(b"\xff\xfe\0" * 999)


def noise(path):
    with path.open("r+b") as file:
        size = path.stat().st_size
        file.seek(size // 2)
        file.write(b"\xff" * (size // 3))


def replaced(path):
    other = path.with_suffix(".new")
    other.write_bytes(b"\x89PNG\r\n\x1a\n" * 99)
    other.replace(path)


@pytest.mark.parametrize("change", [cut, emptied, grown, noise, replaced, Path.unlink])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz", "a.parquet"])
def test_what_was_read_before_a_change_stays(tmp_path, name, change):
    path = tmp_path / name
    if name.endswith("parquet"):
        write_table(path, {"text": ROWS}, row_group_size=1000, compression="none")
    elif name.endswith("gz"):
        path.write_bytes(gzip.compress("".join(ROWS).encode(), 1))
    else:
        path.write_text(LINE * 200_000)
    assert path.stat().st_size > 1_500_000
    documents, said = changed_after_the_first_document(path, change)
    assert "The crane" in documents[0].text
    assert not any("\n" in line for line in said)
