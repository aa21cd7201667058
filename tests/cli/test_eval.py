"""`knn-logits eval` as a user meets it."""

import json

import pytest
from commands import write_corpus

TEXT = "The harbour crane lifts twelve crates, and Queen Maira reads the barometer. " * 6


@pytest.fixture
def text(tmp_path):
    return write_corpus(tmp_path / "text.jsonl", [TEXT, "The keeper lights the lamp."])


def test_json(run, model_folder, store, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(TEXT)
    result = run.good("eval", model_folder, store.folder, text, other, "--json")
    assert len(result.out.splitlines()) == 1
    content = result.json
    assert set(content["perplexity"]) == {"lm", "knn", "interpolated"}
    assert set(content["bits_per_byte"]) == {"lm", "knn", "interpolated"}
    assert content["searches"] == content["tokens"] == sum(t["tokens"] for t in content["texts"])
    assert content["searches_saved"] == 0
    assert content["tokens_per_second"] > 0
    assert [one["name"] for one in content["texts"]] == [text, str(other)]
    assert content["settings"]["k"] == 16
    assert content["settings"]["window"] == 64


def test_for_people(run, model_folder, store, text):
    result = run.good("eval", model_folder, store.folder, text, "--lmbda", 0.3, "--window", 32)
    assert "mixture" in result.out
    assert "lmbda 0.3" in result.out
    assert "window 32" in result.out


def test_mistakes_are_one_line(run, model_folder, store, text, tmp_path):
    for args, expected in (
        ((store.folder,), "no text given"),
        ((store.folder, "data/held"), "data/held does not exist, so it was taken for a"),
        ((store.folder, "data/held.jsonl"), "'data/held.jsonl' does not exist"),
        ((store.folder, "data/held.DOCX"), "'data/held.DOCX' does not exist"),
        ((tmp_path / "nowhere", text), "does not exist"),
        ((store.folder, text, text), "given twice"),
        ((store.folder, text, "--window", 8, "--stride", 9), "larger than window"),
        ((store.folder, store.folder, text, "--weights", "1"), "do not match 2 datastores"),
    ):
        result = run.refused("eval", model_folder, *args)
        assert expected in result.line
    for content, expected in (("", "no readable document"), ("a", "has no token to predict")):
        (tmp_path / "short.txt").write_text(content)
        result = run.refused("eval", model_folder, store.folder, tmp_path / "short.txt", "--json")
        assert (result.out, expected in result.err) == ("", True)


def test_an_unreadable_document_is_skipped(run, model_folder, store, text, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.txt").write_bytes(b"\x7fELF\x02\x01\x01\x00\x00broken\x00")
    result = run.good("eval", model_folder, store.folder, folder, "--json")
    assert "skipped" in result.err
    assert json.loads(result.out)["documents"] == 1
