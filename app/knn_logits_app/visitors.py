"""Keeps what belongs to each visitor: running requests, and datastores of the visitor's texts.

It is kept under the page's session id, which only that page knows, in a private folder. It is
deleted when the page is closed or the server ends. When there are too many datastores, a new one is
refused: no other visitor's datastore is deleted for it.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from knn_logits import Datastore
from knn_logits.errors import LimitError
from knn_logits.hosting import Deadline

# The name of a visitor's datastore on the page.
YOUR_TEXT = "your text"
# A visitor's datastores are deleted after this time without an open page and without a request.
AWAY_SECONDS = 300.0
# The most visitors that have a datastore of their own.
MOST_TEXTS = 64
# As many visitors' last stops are remembered for requests that wait.
_MOST_STOPS = 10_000


@cache
def private_folder() -> Path:
    """Returns a folder that only this process's user may read; it is deleted at the end."""
    folder, owner = Path(tempfile.mkdtemp(prefix="knn-logits-page-")), os.getpid()

    def delete() -> None:
        if os.getpid() == owner:  # and not in a fork of the process
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(delete)
    return folder


def end_on_sigterm() -> None:
    """Makes SIGTERM end the process like a normal exit, so that it cleans up."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


@dataclass
class Visitor:
    """One open page. `used` is when it was last open or sent a request, in seconds."""

    store: Datastore | None = None  # of the visitor's own text
    files: dict[str, int] = field(default_factory=dict)  # the bytes of text of each in the store
    folder: Path | None = None
    # The kind of each, and when its request arrived.
    running: dict[Deadline, tuple[str, float]] = field(default_factory=dict)
    used: float = field(default_factory=time.monotonic)


class Visitors:
    """The visitors of all open pages that made a request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_session: dict[str, Visitor] = {}
        self._open: Counter[str] = Counter()
        self._stops: dict[tuple[str, str], float] = {}
        atexit.register(self.close)

    def stores(self, session: str | None) -> Mapping[str, Datastore]:
        """Returns a visitor's datastores."""
        with self._lock:
            visitor = self.by_session.get(session or "")
            if visitor is None:
                return {}
            visitor.used = time.monotonic()
            return {} if visitor.store is None else {YOUR_TEXT: visitor.store}

    @contextmanager
    def running(
        self, session: str | None, deadline: Deadline, kind: str, arrived: float = math.inf
    ) -> Iterator[Deadline]:
        """Lets the visitor stop the work inside, which replaces earlier work of the kind.

        The deadline of a request that was stopped since it arrived is cancelled already.
        """
        self.stop(session, kind, arrived)
        visitor = self._visitor(session)
        with self._lock:
            visitor.running[deadline] = kind, arrived
            late = arrived < self._stops.get((session or "", kind), -math.inf)
        if late:
            deadline.cancel()
        try:
            yield deadline
        finally:
            deadline.cancel()
            with self._lock:
                del visitor.running[deadline]
                if not visitor.running and visitor.folder is None:
                    self.by_session.pop(session or "", None)

    def stop(self, session: str | None, kind: str | None = None, arrived: float = math.inf) -> None:
        """Stops a visitor's work of a kind, or of all, that arrived before, running or waiting."""
        with self._lock:
            if session and kind and arrived < math.inf:
                before = self._stops.pop((session, kind), arrived)
                self._stops[session, kind] = max(before, arrived)
                if len(self._stops) > _MOST_STOPS:
                    del self._stops[next(iter(self._stops))]
            visitor = self.by_session.get(session or "")
            running = list(visitor.running.items()) if visitor else []
        for deadline, (of, since) in running:
            if kind in (None, of) and since <= arrived:
                deadline.cancel()

    @contextmanager
    def present(self, session: str) -> Iterator[None]:
        """Notes that a session's page is open, until the context ends."""
        with self._lock:
            self._open[session] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[session] -= 1
                self._open += Counter()
                if session in self.by_session:
                    self.by_session[session].used = time.monotonic()

    def is_open(self, session: str) -> bool:
        """Whether a page of a session is open."""
        with self._lock:
            return self._open[session] > 0

    def new_folder(self, session: str) -> Path:
        """Makes an empty folder for a visitor, which only this process's user may read."""
        self._sweep()
        visitor = self._visitor(session)
        with self._lock:
            if visitor.folder is None:
                if sum(each.folder is not None for each in self.by_session.values()) >= MOST_TEXTS:
                    raise LimitError("too many visitors have uploaded texts: try again later")
                visitor.folder = Path(tempfile.mkdtemp(dir=private_folder()))
            return Path(tempfile.mkdtemp(dir=visitor.folder))

    def keep(self, session: str, store: Datastore, files: dict[str, int]) -> None:
        """Gives a datastore of some files to a visitor. It replaces an earlier one."""
        visitor = self._visitor(session)
        with self._lock:
            old, visitor.store, visitor.files = visitor.store, store, files
        if old is not None:
            shutil.rmtree(old.folder.parent, ignore_errors=True)

    def forget(self, session: str | None) -> None:
        """Deletes everything that belongs to a visitor."""
        self.stop(session)
        with self._lock:
            visitor = self.by_session.pop(session or "", None)
        if visitor is not None and visitor.folder is not None:
            shutil.rmtree(visitor.folder, ignore_errors=True)

    def close(self) -> None:
        """Deletes everything that belongs to any visitor."""
        for session in list(self.by_session):
            self.forget(session)

    def _visitor(self, session: str | None) -> Visitor:
        with self._lock:
            # A request from the API has no page that could stop it, so it is not kept.
            visitor = self.by_session.setdefault(session, Visitor()) if session else Visitor()
            visitor.used = time.monotonic()
            return visitor

    def _sweep(self) -> None:
        """Forgets visitors who have no open page, no running work and no recent request."""
        oldest = time.monotonic() - AWAY_SECONDS
        with self._lock:
            gone = [
                session
                for session, visitor in self.by_session.items()
                if not self._open[session] and not visitor.running and visitor.used < oldest
            ]
        for session in gone:
            self.forget(session)
