"""Keeps what belongs to each visitor: running requests and datastores of the visitor's own text.

It is kept under the page's session id, which only that page knows. It is deleted when the page is
closed or the server ends. When there are too many datastores, a new one is refused, and no other
visitor's datastore is deleted for it.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from knn_logits import Datastore, Deadline, LimitError
from knn_logits_app.folder import private_folder
from knn_logits_app.quotas import Quotas

OWN_TEXT = "your text"
# A visitor's datastores are deleted after this time without an open page and without a request.
_AWAY_SECONDS = 300.0


@dataclass
class Visitor:
    """One open page.

    Attributes:
        stores: The visitor's datastores by name.
        folder: The folder of the datastores, once there are any.
        running: The deadlines of running requests, which the visitor can stop.
        address: The address of the visitor.
        used: The time in seconds of the last request, or when the page was last open.
    """

    stores: dict[str, Datastore] = field(default_factory=dict)
    folder: Path | None = None
    running: set[Deadline] = field(default_factory=set)
    address: str = ""
    used: float = field(default_factory=time.monotonic)


class Visitors:
    """The visitors of all open pages that made a request.

    Args:
        quotas: The most that one address may have.
    """

    def __init__(self, quotas: Quotas | None = None) -> None:
        self._quotas = quotas or Quotas()
        self._root: Path | None = None
        self._lock = threading.Lock()
        self._visitors: dict[str, Visitor] = {}
        self._open: Counter[str] = Counter()
        atexit.register(self.close)

    def __len__(self) -> int:
        return len(self._visitors)

    def stores(self, session: str | None) -> Mapping[str, Datastore]:
        """Returns a visitor's own datastores."""
        with self._lock:
            visitor = self._visitors.get(session or "")
            if visitor is None:
                return {}
            visitor.used = time.monotonic()
            return dict(visitor.stores)

    @contextmanager
    def running(self, session: str | None, deadline: Deadline) -> Iterator[Deadline]:
        """Lets the visitor stop the work inside, and stops it when the caller stops reading."""
        visitor = self._of(session)
        with self._lock:
            visitor.running.add(deadline)
        try:
            yield deadline
        finally:
            deadline.cancel()
            with self._lock:
                visitor.running.discard(deadline)
                if not visitor.running and not visitor.stores and visitor.folder is None:
                    self._visitors.pop(session or "", None)

    def stop(self, session: str | None) -> None:
        """Stops all running work of a visitor."""
        with self._lock:
            visitor = self._visitors.get(session or "")
            running = list(visitor.running) if visitor else []
        for deadline in running:
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
                if session in self._visitors:
                    self._visitors[session].used = time.monotonic()

    def new_folder(self, session: str, address: str = "") -> Path:
        """Makes an empty folder for a visitor, which only this process's user may read.

        Args:
            session: The session of the visitor.
            address: The address of the visitor.

        Raises:
            LimitError: when the visitor's address, or all visitors together, have too many.
        """
        self._sweep()
        visitor = self._of(session)
        with self._lock:
            if visitor.folder is None:
                others = [one.address for one in self._visitors.values() if one.folder]
                if others.count(address) >= self._quotas.stores:
                    raise LimitError(
                        f"your address has {self._quotas.stores} own texts already: delete one, "
                        "or close its page"
                    )
                if len(others) >= self._quotas.stores_of_all:
                    raise LimitError("too many visitors have texts of their own: try again later")
                self._root = self._root or Path(tempfile.mkdtemp(dir=private_folder().path))
                visitor.folder = Path(tempfile.mkdtemp(dir=self._root))
                visitor.address = address
            return Path(tempfile.mkdtemp(dir=visitor.folder))

    def keep(self, session: str, store: Datastore) -> None:
        """Gives a datastore to a visitor. It replaces an earlier one."""
        visitor = self._of(session)
        with self._lock:
            old = visitor.stores.get(OWN_TEXT)
            visitor.stores[OWN_TEXT] = store
        if old is not None:
            shutil.rmtree(old.folder.parent, ignore_errors=True)

    def forget(self, session: str | None) -> None:
        """Deletes everything that belongs to a visitor."""
        self.stop(session)
        with self._lock:
            visitor = self._visitors.pop(session or "", None)
        if visitor is not None and visitor.folder is not None:
            shutil.rmtree(visitor.folder, ignore_errors=True)

    def close(self) -> None:
        """Deletes everything that belongs to any visitor."""
        for session in list(self._visitors):
            self.forget(session)
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None

    def _of(self, session: str | None) -> Visitor:
        with self._lock:
            # A request from the API has no page that could stop it, so it is not kept.
            visitor = self._visitors.setdefault(session, Visitor()) if session else Visitor()
            visitor.used = time.monotonic()
            return visitor

    def _sweep(self) -> None:
        """Forgets visitors who have no open page, no running work and no recent request."""
        now = time.monotonic()
        with self._lock:
            gone = [
                name
                for name, one in self._visitors.items()
                if not self._open[name] and not one.running and now - one.used > _AWAY_SECONDS
            ]
        for name in gone:
            self.forget(name)
