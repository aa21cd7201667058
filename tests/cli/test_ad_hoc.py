"""Documents in the place of a datastore: read for one command, and gone after it."""

import io
import json
import sys

import pytest
from conftest import TEXTS

QUESTION = "Which queen founded the town of Oldenport?"


@pytest.fixture
def documents(tmp_path, monkeypatch):
    folder = tmp_path / "notes"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return folder


def test_documents_are_asked_without_a_build(run, model_folder, documents, tmp_path):
    done = run("ask", model_folder, str(documents), QUESTION, "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out.splitlines()[-1])
    assert answer["text"] == TEXTS[2]
    assert answer["passages"][0]["store"] == "documents"
    assert f"build {model_folder} {documents} --out STORE` keeps them" in done.err
    assert list(tmp_path.iterdir()) == [documents]


def test_documents_are_asked_beside_a_datastore(run, model_folder, documents, store):
    new = documents / "new.txt"
    new.write_text("The lighthouse of Kenmouth was painted green by Oda.")
    files = [str(store.folder), str(new)]
    for question, title in ((QUESTION, "2"), ("Who painted the lighthouse of Kenmouth?", "new")):
        done = run("ask", model_folder, *files, question, "--json")
        assert done.code == 0, done.err
        assert title in json.loads(done.out.splitlines()[-1])["passages"][0]["title"]


def test_a_chat_about_documents(run, model_folder, documents, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{QUESTION}\n"))
    done = run.good("chat", model_folder, str(documents))
    assert TEXTS[2] in done.out
    assert "keeps them" in done.err


@pytest.mark.parametrize("left", ["tokens.npy", "building.json"])
def test_a_datastore_that_is_not_whole_is_no_document(run, model_folder, documents, left):
    (documents / left).write_bytes(b"{}")
    done = run("ask", model_folder, str(documents), QUESTION)
    assert done.code == 1
    assert "is not a datastore" in done.err or "unfinished" in done.err


def test_what_cannot_be_read_is_said(run, model_folder, tmp_path):
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    done = run("ask", model_folder, str(tmp_path / "image.png"), QUESTION)
    assert done.code == 1
    assert "image.png" in done.err
    done = run("ask", model_folder, str(tmp_path / "missing"), QUESTION)
    assert "missing does not exist" in done.err
    done = run("ask", model_folder, str(tmp_path), "How", "old", "is", "Maira?")
    assert "How does not exist: pass documents or a datastore; `ask` takes its question" in done.err


def test_an_empty_folder_is_refused_before_the_model_is_loaded(
    run, model_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("knn_logits.cli.loading.RunOptions.load", None)
    done = run.refused("ask", model_folder, tmp_path, "Who has the key?")
    assert "no readable document: nothing is there" in done.line
