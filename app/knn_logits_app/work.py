"""Runs the model in this process, or in the process of a Space that lends a GPU.

Such a Space has the package `spaces`, which runs a decorated function in a fork of this process.
Arguments and results are pickled. So the function gets names and folders in place of objects, and
each call has its own deadline. It uses one thread, because OpenMP's threads do not survive a fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from knn_logits import Datastore, Deadline, Document
from knn_logits_app.library import Library
from knn_logits_app.measuring import Measured, measure
from knn_logits_app.requests import Lookup, Writing
from knn_logits_app.session import Answer, Session, Stores
from knn_logits_app.your_text import Progress, build_steps


class Work:
    """Runs requests in this process. Each method is that of the session or module it calls."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def write(
        self, library: Library, writing: Writing, deadline: Deadline, private: Stores
    ) -> Iterator[dict[str, Answer]]:
        return self.session.write(library, writing, deadline, private)

    def explain(
        self, library: Library, text: str, lookup: Lookup, private: Stores,
        source: str | None = None,
    ) -> Answer:  # fmt: skip
        return self.session.explain(library, text, lookup, private, source)

    def measure(
        self, library: Library, text: str, lookup: Lookup, deadline: Deadline, private: Stores,
        sources: str | None = None,
    ) -> Measured:  # fmt: skip
        return measure(self.session, library, text, lookup, deadline, private, sources)

    def build(
        self, library: Library, documents: Sequence[Document], room: Path, deadline: Deadline
    ) -> Iterator[Progress | Path]:
        return build_steps(self.session, library, documents, room, deadline)


class LentWork(Work):
    """Runs requests where a Space lends a GPU. `lend` is the decorator `spaces.GPU(...)`."""

    def __init__(self, session: Session, lend: Any) -> None:
        super().__init__(session)
        torch.set_num_threads(1)
        local = Work(session)

        # A Space has to know the decorated functions when it starts.
        def write(model: str, writing: Writing, folders: Mapping[str, str]) -> Iterator[Any]:
            library, deadline = session.library(model), session.limits.deadline()
            yield from local.write(library, writing, deadline, _opened(folders))

        def call(name: str, model: str, text: str, folders: Mapping[str, str], *rest: Any) -> Any:
            library, stores = session.library(model), _opened(folders)
            if name == "explain":
                lookup, source = rest
                return local.explain(library, text, lookup, stores, source)
            lookup, sources = rest
            deadline = session.limits.deadline()
            return local.measure(library, text, lookup, deadline, stores, sources)

        def build(model: str, documents: Sequence[Document], room: str) -> Iterator[Any]:
            library, deadline = session.library(model), session.limits.deadline()
            yield from local.build(library, documents, Path(room), deadline)

        self._write, self._call, self._build = lend(write), lend(call), lend(build)

    def write(
        self, library: Library, writing: Writing, deadline: Deadline, private: Stores
    ) -> Iterator[dict[str, Answer]]:
        """Writes in a fork. When a visitor stops, the remaining frames are ignored."""
        for frame in self._write(library.name, writing, _folders(private)):
            yield frame
            if deadline.over:
                return

    def explain(
        self, library: Library, text: str, lookup: Lookup, private: Stores,
        source: str | None = None,
    ) -> Answer:  # fmt: skip
        answer: Answer = self._call(
            "explain", library.name, text, _folders(private), lookup, source
        )
        return answer

    def measure(
        self, library: Library, text: str, lookup: Lookup, deadline: Deadline, private: Stores,
        sources: str | None = None,
    ) -> Measured:  # fmt: skip
        deadline.check()
        measured: Measured = self._call(
            "measure", library.name, text, _folders(private), lookup, sources
        )
        return measured

    def build(
        self, library: Library, documents: Sequence[Document], room: Path, deadline: Deadline
    ) -> Iterator[Progress | Path]:
        for step in self._build(library.name, documents, str(room)):
            deadline.check()
            yield step


def work_for(session: Session) -> Work:
    """Returns the kind of work that suits this machine."""
    if find_spec("spaces") is None:
        return Work(session)
    spaces = import_module("spaces")
    return LentWork(session, spaces.GPU(duration=int(session.limits.seconds) + 5))


def _folders(stores: Stores) -> dict[str, str]:
    return {name: str(store.folder) for name, store in stores.items()}


def _opened(folders: Mapping[str, str]) -> dict[str, Datastore]:
    return {name: Datastore(folder) for name, folder in folders.items()}
