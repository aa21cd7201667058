"""Runs the model in this process, or in the process of a Space that lends a GPU.

Such a Space has the package `spaces`, which runs a decorated function in a fork of this process.
Arguments and results are pickled. So the function gets names and folders in place of objects, and
each call has its own deadline. It uses one thread, because OpenMP's threads do not survive a fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch

from knn_logits import Datastore, Deadline
from knn_logits_app.library import Library
from knn_logits_app.measuring import measure
from knn_logits_app.session import Session, Stores
from knn_logits_app.your_text import build_steps

Kind = Literal["write", "explain", "measure", "build"]


class Work:
    """Runs requests in this process."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def steps(
        self, kind: Kind, library: Library, private: Stores, deadline: Deadline, *arguments: Any
    ) -> Iterator[Any]:
        """Runs a request with the datastores of a visitor, and yields what it gives in time."""
        session = self.session
        if kind == "write":
            (writing,) = arguments
            yield from session.write(library, writing, deadline, private)
        elif kind == "build":
            documents, room = arguments
            yield from build_steps(session, library, documents, room, deadline)
        else:
            text, lookup, source = arguments
            if kind == "explain":
                yield session.explain(library, text, lookup, source, private)
            else:
                yield measure(session, library, text, lookup, source, deadline, private)

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

        def lent(
            kind: Kind, model: str, folders: Mapping[str, str], *arguments: Any
        ) -> Iterator[Any]:
            stores = {name: Datastore(folder) for name, folder in folders.items()}
            deadline = session.limits.deadline()
            yield from local.steps(kind, session.library(model), stores, deadline, *arguments)

        # A Space has to know the decorated function when it starts.
        self._lent = lend(lent)

    def steps(
        self, kind: Kind, library: Library, private: Stores, deadline: Deadline, *arguments: Any
    ) -> Iterator[Any]:
        """Runs a request in a fork. When a visitor stops, the remaining steps are ignored."""
        folders = {name: str(store.folder) for name, store in private.items()}
        for step in self._lent(kind, library.name, folders, *arguments):
            if kind != "write":
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
