"""Keeps what belongs to each visitor: running requests and datastores of the visitor's texts.

It is kept under the page's session id, which only that page knows, and deleted when the page is
closed or the server ends. When there are too many datastores, a new one is refused: no other
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

# The name of a visitor's datastore on the page.
YOUR_TEXT = "your text"
# A visitor's datastores are deleted after this time without an open page and without a request.
AWAY_SECONDS = 300.0


@dataclass(frozen=True)
class Quotas:
    """The most that one address may have at a time.

    Attributes:
        waiting: Requests that run the model or wait for it.
        uploaded: Bytes of uploads that were not deleted yet.
        uploaded_by_all: Bytes of such uploads of all addresses together.
        stores: Datastores of visitors' texts.
        stores_of_all: Such datastores of all addresses together.
    """

    waiting: int = 16
    uploaded: int = 20_000_000
    uploaded_by_all: int = 200_000_000
    stores: int = 8
    stores_of_all: int = 64


@dataclass
class Visitor:
    """One open page. `used` is when it was last open or sent a request, in seconds."""

    stores: dict[str, Datastore] = field(default_factory=dict)
    folder: Path | None = None
    running: dict[Deadline, str] = field(default_factory=dict)
    address: str = ""
    used: float = field(default_factory=time.monotonic)


class Visitors:
    """The visitors of all open pages that made a request."""

    def __init__(self, quotas: Quotas | None = None) -> None:
        self._quotas = quotas or Quotas()
        self.root: Path | None = None
        self._lock = threading.Lock()
        self.by_session: dict[str, Visitor] = {}
        self._open: Counter[str] = Counter()
        atexit.register(self.close)

    def stores(self, session: str | None) -> Mapping[str, Datastore]:
        """Returns a visitor's datastores."""
        with self._lock:
            visitor = self.by_session.get(session or "")
            if visitor is None:
                return {}
            visitor.used = time.monotonic()
            return dict(visitor.stores)

    @contextmanager
    def running(self, session: str | None, deadline: Deadline, kind: str) -> Iterator[Deadline]:
        """Lets the visitor stop the work inside, and stops it when the caller stops reading.

        Earlier work of the visitor and kind is stopped: the new work replaces it.
        """
        self.stop(session, kind)
        visitor = self._visitor(session)
        with self._lock:
            visitor.running[deadline] = kind
        try:
            yield deadline
        finally:
            deadline.cancel()
            with self._lock:
                del visitor.running[deadline]
                if not visitor.running and not visitor.stores and visitor.folder is None:
                    self.by_session.pop(session or "", None)

    def stop(self, session: str | None, kind: str | None = None) -> None:
        """Stops the running work of a visitor of a kind, or of every kind."""
        with self._lock:
            visitor = self.by_session.get(session or "")
            running = list(visitor.running.items()) if visitor else []
        for deadline, of in running:
            if kind in (None, of):
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

    def new_folder(self, session: str, address: str = "") -> Path:
        """Makes an empty folder for a visitor, which only this process's user may read."""
        self._sweep()
        visitor = self._visitor(session)
        with self._lock:
            if visitor.folder is None:
                addresses = [each.address for each in self.by_session.values() if each.folder]
                if addresses.count(address) >= self._quotas.stores:
                    raise LimitError(
                        f"your address has {self._quotas.stores} own texts already: delete one, "
                        "or close its page"
                    )
                if len(addresses) >= self._quotas.stores_of_all:
                    raise LimitError("too many visitors have texts of their own: try again later")
                self.root = self.root or Path(tempfile.mkdtemp(dir=private_folder().path))
                visitor.folder = Path(tempfile.mkdtemp(dir=self.root))
                visitor.address = address
            return Path(tempfile.mkdtemp(dir=visitor.folder))

    def keep(self, session: str, store: Datastore) -> None:
        """Gives a datastore to a visitor. It replaces an earlier one."""
        visitor = self._visitor(session)
        with self._lock:
            old = visitor.stores.get(YOUR_TEXT)
            visitor.stores[YOUR_TEXT] = store
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
        if self.root is not None:
            shutil.rmtree(self.root, ignore_errors=True)
            self.root = None

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
