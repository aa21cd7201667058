"""A conversation of questions: answers, their sources, and what a mistaken line does."""

import io
import sys

import pytest
from conftest import TEXTS

QUESTION = "Which queen founded the town of Oldenport?"


@pytest.fixture
def talk(run, model_folder, store, monkeypatch):
    """Types lines into a conversation; what came out."""

    def typed(*lines, options=(), by_hand=False):
        text = io.StringIO("".join(f"{line}\n" for line in lines))
        text.isatty = lambda: by_hand
        monkeypatch.setattr(sys, "stdin", text)
        return run.good("chat", model_folder, store.folder, "--max-new-tokens", "12", *options)

    return typed


def test_a_question_is_answered_and_why_shows_the_passage(talk):
    out = talk(QUESTION, "/why").out
    assert out.splitlines() == [TEXTS[2], "[2]", "[2]", TEXTS[2]]


def test_a_document_that_is_left_out_answers_nothing(talk):
    assert TEXTS[2] not in talk(QUESTION, options=["--without", "2"]).out


def test_the_model_does_not_answer_alone(talk):
    assert talk("Explain photosynthesis").out == "No passage clearly answers this.\n"
    assert "Perhaps: “" in talk("Which queen drank of the golden river in the morning?").out


def test_written_answers_are_streamed_with_their_passages(talk):
    out = talk(QUESTION, options=["--words", "write"]).out
    assert "[2]" in out.splitlines()
    assert out.splitlines()[0]


def test_the_conversation_is_remembered_until_it_is_new(talk, monkeypatch):
    from knn_logits import Asking

    seen, answer = [], Asking.answer

    def noted(self, question, history, streamer):
        seen.append([message["role"] for message in history])
        return answer(self, question, history, streamer)

    monkeypatch.setattr(Asking, "answer", noted)
    talk(QUESTION, "Why?", "/new", QUESTION)
    assert seen == [[], ["user", "assistant"], []]


def test_a_person_is_told_of_the_commands(talk):
    assert "/help lists the commands" in talk(QUESTION, by_hand=True).out
    assert "/help" not in talk(QUESTION).out
    assert "/new " in talk("/help").out


@pytest.mark.parametrize("line", ["/quit", "/exit", "/bye"])
def test_a_conversation_is_left(talk, line):
    assert talk(line, QUESTION).out == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/frob", "/frob is not a command; /help lists the commands"),
        ("/why", "there is no answer yet"),
        ("a \udcff byte", "is not valid UTF-8 and was ignored"),
    ],
)
def test_a_mistaken_line_is_told_and_the_conversation_goes_on(talk, line, message):
    done = talk(line, QUESTION)
    assert message in done.err
    assert "Traceback" not in done.err
    assert TEXTS[2] in done.out


def test_a_byte_that_is_not_utf8_ends_nothing(run, model_folder, store, monkeypatch):
    lines = f"\n{QUESTION}\n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe" + lines), "utf-8"))
    done = run.good("chat", model_folder, store.folder)
    assert "is not valid UTF-8" in done.err
    assert TEXTS[2] in done.out
