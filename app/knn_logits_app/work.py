"""Measures a text, and runs every kind of request here or where a Space lends a GPU.

A Space that lends GPUs has the package `spaces`, which runs a decorated function in a fork of this
process. Arguments and results are pickled. So the function gets names and folders in place of
objects, and each call has its own deadline. It uses one thread, because OpenMP's threads do not
survive a fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch

from knn_logits import CorpusError, Datastore, Deadline, Document, evaluate, settings_line, tune
from knn_logits_app.questions import ask_steps, asking_of
from knn_logits_app.requests import Lookup, pairs_of, text_of
from knn_logits_app.session import Session, Stores, settings_of
from knn_logits_app.your_text import build_steps

Kind = Literal["write", "ask", "explain", "measure", "build"]
# The most characters of a text, since a visitor waits while it is measured many times.
MOST_MEASURED = 40_000


@dataclass(frozen=True)
class Heat:
    """The perplexities of a text by temperature (rows) and λ (columns); None is infinite."""

    temperatures: list[float]
    lmbdas: list[float]
    perplexities: list[list[float | None]]
    k: int
    best: tuple[int, int]


@dataclass(frozen=True)
class Measured:
    """The perplexities of a text. One that is infinite is None."""

    tokens: int
    lm: float | None
    interpolated: float | None
    knn: float | None
    oracle: float | None
    bits_per_byte: tuple[float | None, float | None]
    heat: Heat | None
    settings: str  # a line about those of the memory


def to_measure(session: Session, text: Any, sources: Any = None) -> list[Document | str]:
    """Checks a text, or targets of sources by line, and returns the documents to measure."""
    if not session.library.reader.sources:
        text = text_of(text, most=MOST_MEASURED)
        session.limits.check(text_bytes=len(text.encode("utf-8")))
        return [text]
    pairs = pairs_of(sources, text, most=MOST_MEASURED)
    session.limits.check(text_bytes=len(f"{sources}{text}".encode()))
    return list(pairs)


def measure(
    session: Session,
    text: str,
    lookup: Lookup,
    sources: str | None,
    deadline: Deadline,
    private: Stores | None = None,
) -> Measured:
    """Measures a text that `to_measure` allows."""
    library, documents = session.library, to_measure(session, text, sources)
    memory = library.memory.over(session.stores(lookup, private))
    model, tokenizer, watch = library.model, library.tokenizer, deadline.watch()
    scoring = memory.asked(**settings_of(lookup))
    total = evaluate(model, tokenizer, scoring, documents, samples=0, progress=watch).total
    settings = settings_line(scoring.config, symbols=True)
    settings += ", but a gate sets λ for each word" if scoring.gate is not None else ""
    heat = None
    try:
        tuned = tune(model, tokenizer, memory, documents, progress=watch)
        numbers = tuned.numbers()
        grid = numbers["perplexity_by_temperature_and_lmbda"]
        best = (tuned.place[1], tuned.place[2])
        heat = Heat(numbers["temperatures"], numbers["lmbdas"], grid, tuned.k, best)
    except CorpusError:  # The text is too short to be halved.
        pass
    p, bits = total.perplexity, total.bits_per_byte
    bits_per_byte = (bits.interpolated, bits.lm)
    figures = (p.lm, p.interpolated, p.knn, p.oracle)
    return Measured(total.tokens, *figures, bits_per_byte, heat, settings)


class Work:
    """Runs requests in this process."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def steps(
        self, kind: Kind, private: Stores, deadline: Deadline, *arguments: Any
    ) -> Iterator[Any]:
        """Runs a request with the datastores of a visitor, and yields what it gives in time."""
        session = self.session
        if kind == "write":
            (writing,) = arguments
            yield from session.write(writing, deadline, private)
        elif kind == "ask":
            (question,) = arguments
            yield from ask_steps(session, question, deadline, private)
        elif kind == "build":
            documents, room = arguments
            yield from build_steps(session, documents, room, deadline)
        else:
            text, lookup, source = arguments
            if kind == "explain":
                yield session.explain(text, lookup, source, private)
            else:
                yield measure(session, text, lookup, source, deadline, private)

    def result(self, *arguments: Any) -> Any:
        """Runs a request as `steps` does, and returns its last step."""
        *_, last = self.steps(*arguments)
        return last


class LentWork(Work):
    """Runs requests where a Space lends a GPU. `lend` is the decorator `spaces.GPU(...)`."""

    def __init__(self, session: Session, lend: Any) -> None:
        super().__init__(session)
        torch.set_num_threads(1)
        local = Work(session)

        def lent(kind: Kind, folders: Mapping[str, str], *arguments: Any) -> Iterator[Any]:
            stores = {name: Datastore(folder) for name, folder in folders.items()}
            deadline = session.limits.deadline()
            yield from local.steps(kind, stores, deadline, *arguments)

        # A Space has to know the decorated function when it starts.
        self._lent = lend(lent)

    def steps(
        self, kind: Kind, private: Stores, deadline: Deadline, *arguments: Any
    ) -> Iterator[Any]:
        """Runs a request in a fork. When a visitor stops, the remaining steps are ignored."""
        if kind == "ask":
            # Forks have the passages that are cut here. Those that one cuts would end with it.
            (question,) = arguments
            asking_of(self.session, question, private).find(question.text)
        folders = {name: str(store.folder) for name, store in private.items()}
        for step in self._lent(kind, folders, *arguments):
            if kind not in ("write", "ask"):
                deadline.check()
            yield step
            if deadline.over:
                return


def work_for(session: Session) -> Work:
    """Returns the kind of work that suits this machine."""
    if find_spec("spaces") is None:
        return Work(session)
    spaces = import_module("spaces")
    return LentWork(session, spaces.GPU(duration=int(session.limits.seconds) + 5))
