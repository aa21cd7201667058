"""The page of a model with a chat template, which all tests of the chat share."""

import copy
import threading

import pytest

from app.chatting import QUEEN, Chat
from app.conftest import PATIENCE, serving
from app.payloads import PAYLOADS
from knn_logits import Asking, Document, build_datastore
from knn_logits.hosting import Limits
from knn_logits_app.library import Library


@pytest.fixture(scope="package")
def chat_page(model, tokenizer, store, tmp_path_factory):
    """The page of a model with a chat template, with the texts and with hostile documents."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}Answer:"
    hostile = [
        Document(f"Sign {number} reads {payload} today.", payload, title=payload, uri=payload)
        for number, payload in enumerate(PAYLOADS[::3])
    ]
    hostile.append(
        Document("The ferry leaves Oldenport at noon.", "ferry", uri="https://example.org/ferry")
    )
    signs = build_datastore(
        model, own, hostile, tmp_path_factory.mktemp("chat") / "signs", calibrate=False
    )
    library = Library.of("tiny", model, own, [store, signs])
    library.questions = (QUEEN,)
    with serving(library, limits=Limits(256, 24, seconds=600)) as served:
        yield served


@pytest.fixture
def chat(visit, chat_page):
    return Chat(visit(url=chat_page[0]))


@pytest.fixture
def held(chat_page, monkeypatch):
    """The search for passages waits until it is let go, so that no answer comes before a click."""
    find, go = Asking.find, threading.Event()

    def slow(self, query, *given):
        if "Oldenport" in query:
            go.wait(PATIENCE)
        return find(self, query, *given)

    monkeypatch.setattr(Asking, "find", slow)
    yield go
    go.set()
