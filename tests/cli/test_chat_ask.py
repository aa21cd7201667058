"""A conversation of questions: quoted sentences, their sources, and the way back to continuing."""

import io
import json
import shutil
import sys

import pytest
from conftest import TEXTS

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}Answer:"
QUESTION = "Which queen founded the town of Oldenport?"


@pytest.fixture(scope="module")
def asked_folder(model_folder, tmp_path_factory):
    folder = shutil.copytree(model_folder, tmp_path_factory.mktemp("asked") / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


@pytest.fixture
def talk(run, asked_folder, store, monkeypatch):
    def typed(*lines, options=(), by_hand=False):
        text = io.StringIO("".join(f"{line}\n" for line in lines))
        text.isatty = lambda: by_hand
        monkeypatch.setattr(sys, "stdin", text)
        return run(
            "chat", asked_folder, str(store.folder), "--max-new-tokens", "12", *options
        )  # fmt: skip

    return typed


def test_a_question_is_answered_and_why_shows_the_passage(talk, tmp_path):
    file = tmp_path / "answer.json"
    out = talk(QUESTION, "/why", "/why Maira", f"/save {file}").out
    assert out.splitlines() == [TEXTS[2], "[2]", *2 * ["[2]", TEXTS[2]]]
    assert json.loads(file.read_text())["text"] == TEXTS[2]


def test_a_document_that_is_left_out_answers_nothing(talk):
    assert TEXTS[2] not in talk("/without 2", QUESTION).out


def test_what_it_said_of_a_document_that_is_left_out_is_forgotten(talk, tmp_path):
    file = tmp_path / "answer.json"
    told = talk(QUESTION, "/without 2", "And who is she?", f"/save {file}").out
    assert "the conversation is forgotten" in told
    assert "Maira" not in file.read_text()
    assert "forgotten" not in talk("/without 2").out


def test_the_model_does_not_answer_alone(talk):
    assert talk("Explain photosynthesis").out == "No passage answers this.\n"
    assert "Perhaps: “" in talk("Which queen drank of the golden river in the morning?").out


def test_texts_are_continued_where_that_is_chosen(talk):
    assert TEXTS[2] not in talk("/ask off", QUESTION).out
    assert TEXTS[2] not in talk(QUESTION, options=["--continue"]).out
    assert "usage: /ask on" in talk("/ask maybe").err


def test_written_answers_are_streamed_once(talk):
    out = talk(QUESTION, options=["--words", "write"]).out
    assert "[2]" in out.splitlines()
    assert out.splitlines()[0]


def test_a_person_is_told_once_how_to_see_the_sources(talk):
    hint = "/why shows where each word comes from"
    assert talk(QUESTION, QUESTION, by_hand=True).out.count(hint) == 1
    assert talk("/ask off", QUESTION, QUESTION, by_hand=True).out.count(hint) == 1
    assert hint not in talk("/knn off", QUESTION, by_hand=True).out
    assert hint not in talk(QUESTION).out
