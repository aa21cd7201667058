"""Answers a visitor's question from the documents, and passes the answer on as it is written."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from knn_logits import Answer, AskConfig, Asking, Datastore, Deadline, Memory, Pieces, text_ids
from knn_logits_app.decoding import TokenStream
from knn_logits_app.library import Library
from knn_logits_app.requests import MOST_CHARACTERS, Lookup, RequestError, list_of, text_of
from knn_logits_app.session import FRAME_SECONDS, Session, Stores
from knn_logits_app.session import Answer as Written

# The most messages of a conversation that are read.
MOST_MESSAGES = 16
_ROLES = ("user", "assistant")
_LOOK_SECONDS = 0.1
# The most tokens of a datastore whose words are ranked while an answer waits.
_RANKED_AT_ONCE = 100_000


@dataclass(frozen=True)
class Question:
    """A question with the messages before it, in pairs of a question and its answer."""

    text: str
    lookup: Lookup
    history: tuple[dict[str, str], ...] = ()
    own_words: bool = False  # whether the model writes the answer, and quotes no sentence


@dataclass(frozen=True)
class Reply:
    """A reply as far as it is there: words that are being written, and then the whole answer."""

    written: str = ""
    alone: bool = False  # whether the model is known to answer without a passage
    answer: Answer | None = None
    stopped: str | None = None  # why it ended early
    full: int | None = None  # the most tokens of an answer, if it ended there


def question_of(text: Any, lookup: Lookup, history: Any, own_words: Any) -> Question:
    """Checks a request. Of a long conversation the first messages are left out."""
    messages = list_of(history, MOST_MESSAGES)
    turns = []
    for message, role in zip(messages, _ROLES * MOST_MESSAGES, strict=False):
        if not isinstance(message, dict) or message.get("role") != role:
            raise RequestError("The conversation cannot be read: start a new chat.")
        turns.append({"role": role, "content": text_of(message.get("content"), "message")})
    while turns and (
        len(turns) % 2 or sum(len(turn["content"]) for turn in turns) > MOST_CHARACTERS
    ):
        del turns[: 2 - len(turns) % 2]
    return Question(text_of(text, "question"), lookup, tuple(turns), own_words is True)


def asking_of(session: Session, question: Question, private: Stores | None = None) -> Asking:
    """Opens the datastores of a question, or refuses it before anything runs."""
    library = session.library
    if library.reader.sources:
        raise RequestError("This model only translates: choose another to ask questions.")
    new_tokens = min(AskConfig().max_new_tokens, session.limits.new_tokens)
    session.limits.check(
        prompt_tokens=len(text_ids(library.tokenizer, question.text)), new_tokens=new_tokens
    )
    config = AskConfig("write" if question.own_words else "quote", max_new_tokens=new_tokens)
    return _asking(session, question.lookup, private, config)


def _asking(
    session: Session,
    lookup: Lookup,
    private: Stores | None,
    config: AskConfig | None = None,
) -> Asking:
    library, stores = session.library, session.stores(lookup, private)
    memory = library.memory.over(stores)
    if set(lookup.stores) & set(private or {}):
        # An open memory keeps the passages that it has cut, and a visitor's text must not stay.
        memory = Memory(library.model, stores, threads=session.threads, check=False)
    return Asking(library.model, library.tokenizer, memory, config)


def knowing(
    session: Session, text: str, lookup: Lookup, private: Stores | None = None
) -> list[str]:
    """Names datastores that are not searched and have a sentence about a text, by words alone.

    A large one is named once its words are ranked, for which no answer waits.
    """
    names = []
    for name, store in {**session.library.stores, **(private or {})}.items():
        if name not in lookup.stores:
            asking = _asking(session, replace(lookup, stores=(name,)), private)
            if not _ranked(session, store, asking):
                continue
            if asking.shared(text) >= asking.config.least_shared:
                names.append(name)
    return names


def _ranked(session: Session, store: Datastore, asking: Asking) -> bool:
    """Whether a datastore's words are ranked, or soon are; begins that of a large one."""
    if len(store.tokens) <= _RANKED_AT_ONCE:
        return True
    thread = threading.Thread(target=asking.shared, args=("",), name="rank", daemon=True)
    first = session.ranking.setdefault(store.folder, thread)
    if first is thread:
        thread.start()
    first.join(_LOOK_SECONDS)
    return not first.is_alive()


def elsewhere(
    session: Session,
    text: str,
    lookup: Lookup | None,
    answers: Mapping[str, Written],
    private: Stores | None,
) -> dict[str, Any]:
    """Where nothing is near a text, names the datastores that would have had something."""
    near = [answer.trace[0].near for answer in answers.values() if answer.trace is not None]
    if lookup is None or session.library.reader.sources or False not in near:
        return {}
    return {"elsewhere": knowing(session, text, lookup, private)}


def ask_steps(
    session: Session,
    question: Question,
    deadline: Deadline,
    private: Stores | None = None,
) -> Iterator[Reply]:
    """Yields the reply to a question as it grows. It ends when its thread has ended."""
    asking = asking_of(session, question, private)
    news: queue.Queue[str | Answer | BaseException] = queue.Queue()
    heard = _Heard(session.library, news)

    def run() -> None:
        try:
            stream = TokenStream(heard.add)
            criteria = [deadline]
            news.put(
                asking.answer(question.text, question.history, stream, stopping_criteria=criteria)
            )
        except BaseException as error:
            news.put(error)

    worker = threading.Thread(target=run, name="ask", daemon=True)
    worker.start()
    reply = Reply()
    yield reply
    try:
        while reply.answer is None and reply.stopped is None:
            try:
                step = news.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                # The search has no step at which it could end.
                if deadline.over and not reply.written:
                    reply = replace(reply, stopped=_reason(deadline))
                    yield reply
                continue
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, str):
                # Where a sentence is quoted, the model writes only if no passage is about it.
                reply = replace(reply, written=step, alone=not question.own_words)
            else:
                most = asking.config.max_new_tokens
                full = most if heard.number >= most else None
                cut = heard.number and not full and deadline.over
                stopped = _reason(deadline) if cut else None
                reply = Reply(heard.text, not step.near, step, stopped, full)
            yield reply
    finally:
        deadline.cancel()
        # So many questions run at once as the queue allows, also those that nobody waits for.
        worker.join()


def _reason(deadline: Deadline) -> str:
    return "stopped" if deadline.cancelled else "the time is up"


class _Heard:
    """Collects the words that the model writes, and tells them as often as a reader can follow."""

    def __init__(self, library: Library, news: queue.Queue[Any]) -> None:
        self._news = news
        self._silent = library.reader.silent | set(library.tokenizer.all_special_ids)
        self._pieces = Pieces(library.tokenizer, [])
        self._last = 0.0
        self.text, self.number = "", 0

    def add(self, token: int) -> None:
        self.number += 1
        if token in self._silent:
            return
        self.text += self._pieces.add(token)
        now = time.monotonic()
        if self.text.strip() and now - self._last >= FRAME_SECONDS:
            self._last = now
            self._news.put(self.text.strip())
