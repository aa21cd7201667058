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
from knn_logits_app.own_text import Progress, build_steps
from knn_logits_app.requests import Lookup, Writing
from knn_logits_app.session import Answer, Session

Own = Mapping[str, Datastore]


class Work:
    """Runs requests in this process.

    Args:
        session: The models.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def write(
        self, library: Library, wanted: Writing, deadline: Deadline, own: Own
    ) -> Iterator[dict[str, Answer]]:
        """See `Session.write`."""
        return self.session.write(library, wanted, deadline, own)

    def explain(
        self, library: Library, text: str, lookup: Lookup, own: Own, source: str | None = None
    ) -> Answer:
        """See `Session.explain`."""
        return self.session.explain(library, text, lookup, own, source)

    def measure(
        self, library: Library, text: str, lookup: Lookup, deadline: Deadline, own: Own,
        sources: str | None = None,
    ) -> Measured:  # fmt: skip
        """See `measure`."""
        return measure(self.session, library, text, lookup, deadline, own, sources)

    def build(
        self, library: Library, documents: Sequence[Document], room: Path, deadline: Deadline
    ) -> Iterator[Progress | Path]:
        """See `build_steps`."""
        return build_steps(self.session, library, documents, room, deadline)


class LentWork(Work):
    """Runs requests where a Space lends a GPU.

    Args:
        session: The models.
        lend: The decorator, `spaces.GPU(duration=...)`.
    """

    def __init__(self, session: Session, lend: Any) -> None:
        super().__init__(session)
        torch.set_num_threads(1)
        limits = session.limits

        # A Space has to know the decorated functions when it starts.
        def write(model: str, wanted: Writing, own: Mapping[str, str]) -> Iterator[Any]:
            yield from session.write(
                session.library(model), wanted, limits.deadline(), _opened(own)
            )

        def explained(
            model: str, text: str, lookup: Lookup, own: Mapping[str, str], source: str | None
        ) -> Any:
            return session.explain(session.library(model), text, lookup, _opened(own), source)

        def measured(
            model: str, text: str, lookup: Lookup, own: Mapping[str, str], sources: str | None
        ) -> Any:
            library, stores = session.library(model), _opened(own)
            return measure(session, library, text, lookup, limits.deadline(), stores, sources)

        def built(model: str, documents: Sequence[Document], room: str) -> Iterator[Any]:
            yield from build_steps(
                session, session.library(model), documents, Path(room), limits.deadline()
            )

        self._write, self._explain = lend(write), lend(explained)
        self._measure, self._build = lend(measured), lend(built)

    def write(
        self, library: Library, wanted: Writing, deadline: Deadline, own: Own
    ) -> Iterator[dict[str, Answer]]:
        """See `Session.write`. When a visitor stops, the remaining frames are ignored."""
        for frame in self._write(library.name, wanted, _folders(own)):
            yield frame
            if deadline.over:
                return

    def explain(
        self, library: Library, text: str, lookup: Lookup, own: Own, source: str | None = None
    ) -> Answer:
        """See `Session.explain`."""
        found: Answer = self._explain(library.name, text, lookup, _folders(own), source)
        return found

    def measure(
        self, library: Library, text: str, lookup: Lookup, deadline: Deadline, own: Own,
        sources: str | None = None,
    ) -> Measured:  # fmt: skip
        """See `measure`."""
        deadline.check()
        found: Measured = self._measure(library.name, text, lookup, _folders(own), sources)
        return found

    def build(
        self, library: Library, documents: Sequence[Document], room: Path, deadline: Deadline
    ) -> Iterator[Progress | Path]:
        """See `build_steps`."""
        for step in self._build(library.name, documents, str(room)):
            deadline.check()
            yield step


def work_for(session: Session) -> Work:
    """Returns the kind of work that suits this machine."""
    if find_spec("spaces") is None:
        return Work(session)
    spaces = import_module("spaces")
    return LentWork(session, spaces.GPU(duration=int(session.limits.seconds) + 5))


def _folders(own: Own) -> dict[str, str]:
    return {name: str(store.folder) for name, store in own.items()}


def _opened(own: Mapping[str, str]) -> dict[str, Datastore]:
    return {name: Datastore(folder) for name, folder in own.items()}
