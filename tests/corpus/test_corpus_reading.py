"""Folders, ids, pairs, and a corpus as a whole."""

import os
import tracemalloc

import pytest
from corpus_files import failure, lines_of, read, write, write_lines, write_table

from knn_logits.corpus.reading import corpus_bytes, read_corpus
from knn_logits.errors import CorpusError

# Folders


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path):
    for name in ["b.txt", "a/z.md", "a/c/x.py", "B.rst", "a.txt", "a-b/q", "a/10", "a/9"]:
        write(tmp_path / name, name)
    write_lines(tmp_path / "a" / "rows.jsonl", [{"text": "row"}])
    for hidden in [".hidden.txt", ".git/config", "a/.cache/x.txt"]:
        write(tmp_path / hidden, "hidden")
    documents, skipped = read(str(tmp_path))
    assert [document.id for document in documents] == [
        "B.rst",
        *["a/10", "a/9", "a/c/x.py", "a/rows.jsonl:1", "a/z.md"],
        "a-b/q",
        "a.txt",
        "b.txt",
    ]
    assert [document.uri for document in documents if document.text != "row"] == [
        document.id for document in documents if document.text != "row"
    ]
    assert skipped == []
    assert read(str(tmp_path) + "/")[0] == documents
    assert read(tmp_path)[0] == documents


def test_links_to_folders_and_out_of_a_folder_are_passed_over_and_named(tmp_path):
    write(tmp_path / "corpus" / "deep" / "a.txt", "words")
    write(tmp_path / "elsewhere" / "b.txt", "words")
    for name, target in {
        "a": "deep/a.txt",
        "deep/loop": tmp_path / "corpus",
        "file.txt": "../elsewhere/b.txt",
        "link": tmp_path / "elsewhere",
    }.items():
        (tmp_path / "corpus" / name).symlink_to(target)
    corpus = str(tmp_path / "corpus")
    for named in (corpus, f"{corpus}/deep/loop"):
        documents, skipped = read(named)
        assert [document.id for document in documents] == ["a", "deep/a.txt"]
        reason = "a link to a folder, or out of this one; pass its target as well"
        assert skipped == [
            (f"{named}/{name}", reason) for name in ("deep/loop", "file.txt", "link")
        ]
    assert corpus_bytes([corpus]) == 10
    assert [document.id for document in read(f"{corpus}/file.txt")[0]] == ["file.txt"]


def test_the_cache_of_the_hub_is_a_folder_of_links_that_are_read(tmp_path):
    blob = write(tmp_path / "datasets--a--b" / "blobs" / "0", "text")
    secret = write(tmp_path / "datasets--a--b" / "refs" / "main", "secret")
    snapshot = tmp_path / "datasets--a--b" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "a.txt").symlink_to(blob)
    (snapshot / "b.txt").symlink_to(secret)
    documents, ((name, _),) = read(str(snapshot))
    assert [document.text for document in documents] == ["text"]
    assert name == str(snapshot / "b.txt")


def test_a_broken_link_and_a_pipe_in_a_folder_are_skipped(tmp_path):
    write(tmp_path / "good.txt", "good")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    documents, skipped = read(str(tmp_path))
    assert [document.id for document in documents] == ["good.txt"]
    assert skipped == [
        (str(tmp_path / "broken"), "no such file or directory"),
        (str(tmp_path / "pipe"), "not a regular file"),
    ]


# Ids


def test_equal_ids_are_numbered_in_the_order_of_reading(tmp_path):
    ids = ["a", "a", "a#2", "b", "a", "a#2", "a#3"]
    path = write_lines(tmp_path / "a.jsonl", [{"text": "t", "id": name} for name in ids])
    numbered = [document.id for document in read(path)[0]]
    assert numbered == ["a", "a#2", "a#2#2", "b", "a#3", "a#2#3", "a#3#2"]
    assert [document.id for document in read(path)[0]] == numbered


# Pairs


@pytest.mark.parametrize("name", ["a.txt", "a.md.gz", "README"])
def test_plain_text_is_no_pair(tmp_path, name):
    path = write(tmp_path / name, "words")
    message = failure(path, pairs=True)
    assert f"{path}: plain text without source and target" in message
    assert ".jsonl" in message


# The corpus as a whole


@pytest.mark.parametrize("name", ["nowhere.txt", "org/name", ""])
def test_a_path_that_does_not_exist_is_an_error_at_once(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    good = write(tmp_path / "good.txt", "good")
    for function in (read_corpus, corpus_bytes):
        with pytest.raises(CorpusError, match=r"does not exist; check the path") as caught:
            function([good, name])
        assert repr(name) in str(caught.value)
        assert "hf:" in str(caught.value)


def test_a_corpus_without_a_readable_document_is_an_error(tmp_path):
    binary = write(tmp_path / "a.bin", b"\0")
    write(tmp_path / "b.txt", " ")
    skipped = []
    message = failure(str(tmp_path), on_skip=lambda *skip: skipped.append(skip))
    assert f"no readable document: 2 skipped, the first {binary}: binary" in message
    assert "pass documents, text files" in message
    assert len(skipped) == 2


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    def peak(count):
        path = write_lines(tmp_path / "a.jsonl.gz", [{"text": "words " * 2000}] * count)
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_corpus([path])) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    assert peak(500) < 2 * peak(50)  # 6 MB of text against 0.6 MB


# Progress


def test_the_bytes_read_grow_to_the_size_of_the_corpus(tmp_path):
    write_lines(tmp_path / "a.jsonl.gz", lines_of(5000))
    write_lines(tmp_path / "b.jsonl", lines_of(50))
    write_table(tmp_path / "c.parquet", {"text": ["words"] * 200})
    write(tmp_path / "d.bin", b"\0" * 1000)
    write(tmp_path / "e.txt", "text")
    total = corpus_bytes([str(tmp_path)])
    assert total == sum(path.stat().st_size for path in tmp_path.iterdir())
    seen = []
    list(read_corpus([str(tmp_path)], on_bytes=seen.append))
    assert seen == sorted(seen)
    assert seen[-1] == total
    assert len(set(seen)) > 50
