"""Questions about the documents, without a page."""

import copy
import gc
import threading
import time
import weakref

import pytest

from app.conftest import eventually
from knn_logits import Datastore
from knn_logits.errors import LimitError
from knn_logits.hosting import Deadline, Limits
from knn_logits_app.decoding import TokenStream
from knn_logits_app.library import Library
from knn_logits_app.questions import MOST_MESSAGES, Asked, Question, ask_steps, question_of
from knn_logits_app.requests import MOST_CHARACTERS, Lookup, RequestError, content_of
from knn_logits_app.session import Session
from knn_logits_app.visitors import YOUR_TEXT

QUESTION = "Which queen founded the town of Oldenport?"


@pytest.fixture(scope="module")
def asked(model, tokenizer, store):
    own = copy.deepcopy(tokenizer)
    own.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}Answer:"
    library = Library.of("tiny", model, own, [store])
    return Session(library, Limits(prompt_tokens=64, new_tokens=12, seconds=600))


def steps(session, text=QUESTION, *, stores=("store",), private=None, deadline=None, **how):
    question = Question(text, Lookup(tuple(stores)), **how)
    deadline = deadline or session.limits.deadline()
    return ask_steps(session, question, deadline, private)


@pytest.fixture
def name(asked):
    return next(iter(asked.library.stores))


def test_a_written_answer_names_the_passage_of_its_words(asked, name, monkeypatch):
    monkeypatch.setattr("knn_logits.ask.asking.reads", lambda *_: True)
    *_, shown = steps(asked, stores=[name])
    assert (shown["quoted"], shown["answered"]) == (False, True)
    assert "".join(text for text, _ in shown["parts"]).strip() == shown["text"]
    assert {source for _, source in shown["parts"]} <= {None, 0, 1, 2}
    assert shown["stopped"] == "an answer has 12 tokens at most"


def test_a_stopped_question_ends_and_its_thread_too(asked, name, monkeypatch):
    deadline = Deadline(600)

    def until_stopped(self, value, put=TokenStream.put):
        put(self, value)
        eventually(lambda: deadline.cancelled)

    monkeypatch.setattr(TokenStream, "put", until_stopped)
    monkeypatch.setattr("knn_logits.ask.asking.reads", lambda *_: True)
    replies = steps(asked, stores=[name], deadline=deadline)
    next(replies)
    deadline.cancel()
    *_, stopped = replies
    assert stopped["stopped"] == "stopped"
    assert not [thread for thread in threading.enumerate() if thread.name == "ask"]


def test_what_a_visitor_s_text_left_behind_is_forgotten(asked, name, build, tmp_path):
    build(["The lamp burns rape oil every night."], tmp_path / "own")
    own = Datastore(tmp_path / "own")
    replies = steps(
        asked, "Which oil does the lamp burn?", stores=[YOUR_TEXT], private={YOUR_TEXT: own}
    )
    *_, last = replies
    assert last["text"] == "The lamp burns rape oil every night."
    assert last["passages"][0]["store"] == YOUR_TEXT
    gone = weakref.ref(own)
    del own, replies
    for _ in range(100):
        gc.collect()
        if gone() is None:
            break
        time.sleep(0.1)
    assert gone() is None


def test_a_question_is_checked(asked, name):
    turn = [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "B."}]

    def checked(text, history):
        content = {"turn": 1, "question": text, "history": history}
        return question_of(content_of(Asked, content), Lookup((name,)))

    assert checked("C?", turn * 2).history == tuple(turn * 2)
    for history in (
        "text", [1], [{"role": "system", "content": "A"}], [{"role": "user", "content": ["A"]}],
        turn * MOST_MESSAGES,
    ):  # fmt: skip
        with pytest.raises(RequestError):
            checked("C?", history)
    # The first messages of a long conversation are left out, in pairs.
    long = [{"role": "user", "content": "A" * (MOST_CHARACTERS // 2)}, turn[1]]
    assert checked("C?", long * 3).history == tuple(long)
    with pytest.raises(RequestError, match="empty"):
        checked(" ", [])
    with pytest.raises(LimitError, match="shorten"):
        list(steps(asked, "word " * 200, stores=[name]))
    with pytest.raises(RequestError, match="datastore is not available"):
        list(steps(asked, stores=["none"]))
