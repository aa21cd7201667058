"""What belongs to one visitor: running work that can be stopped, and a datastore of their own text.

Kept under the page's session, which only that page knows, and deleted when the page is closed, when
nobody used it for an hour, or when the server ends.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from knn_logits import Datastore, Deadline

OWN_TEXT = "your text"
_IDLE_SECONDS = 3600.0
_MOST_STORES = 64


@dataclass
class Visitor:
    """One open page.

    Attributes:
        stores: The visitor's datastores by name.
        folder: Where they are, made when there is something to keep.
        running: Work that a visitor can stop.
        used: When the page last asked for something.
    """

    stores: dict[str, Datastore] = field(default_factory=dict)
    folder: Path | None = None
    running: set[Deadline] = field(default_factory=set)
    used: float = field(default_factory=time.monotonic)


class Visitors:
    """All open pages that asked for something."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._lock = threading.Lock()
        self._visitors: dict[str, Visitor] = {}
        atexit.register(self.close)

    def __len__(self) -> int:
        return len(self._visitors)

    def stores(self, session: str | None) -> Mapping[str, Datastore]:
        """A visitor's own datastores."""
        with self._lock:
            visitor = self._visitors.get(session or "")
            if visitor is None:
                return {}
            visitor.used = time.monotonic()
            return dict(visitor.stores)

    @contextmanager
    def running(self, session: str | None, deadline: Deadline) -> Iterator[Deadline]:
        """Lets the visitor stop what runs inside, and stops it when nobody waits any more."""
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
        """Stops what runs for a visitor."""
        with self._lock:
            visitor = self._visitors.get(session or "")
            running = list(visitor.running) if visitor else []
        for deadline in running:
            deadline.cancel()

    def new_folder(self, session: str) -> Path:
        """An empty folder for a visitor, which only this process's user may read."""
        self._sweep()
        visitor = self._of(session)
        with self._lock:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="knn-logits-app-"))
            if visitor.folder is None:
                visitor.folder = Path(tempfile.mkdtemp(dir=self._root))
            return Path(tempfile.mkdtemp(dir=visitor.folder))

    def keep(self, session: str, store: Datastore) -> None:
        """Makes a datastore the visitor's own, in place of an earlier one."""
        visitor = self._of(session)
        with self._lock:
            old = visitor.stores.get(OWN_TEXT)
            visitor.stores[OWN_TEXT] = store
        if old is not None:
            shutil.rmtree(old.folder.parent, ignore_errors=True)

    def forget(self, session: str | None) -> None:
        """Deletes everything of a visitor."""
        self.stop(session)
        with self._lock:
            visitor = self._visitors.pop(session or "", None)
        if visitor is not None and visitor.folder is not None:
            shutil.rmtree(visitor.folder, ignore_errors=True)

    def close(self) -> None:
        """Deletes everything of everybody."""
        for session in list(self._visitors):
            self.forget(session)
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)

    def _of(self, session: str | None) -> Visitor:
        with self._lock:
            # Work without a page, from the API, can be stopped by nobody: it is not kept.
            visitor = self._visitors.setdefault(session, Visitor()) if session else Visitor()
            visitor.used = time.monotonic()
            return visitor

    def _sweep(self) -> None:
        """Forgets who has been away for long, and the longest away where there are too many."""
        now = time.monotonic()
        with self._lock:
            keepers = [(one.used, name) for name, one in self._visitors.items() if one.folder]
            gone = [name for used, name in keepers if now - used > _IDLE_SECONDS]
            many = sorted(keepers)[: max(0, len(keepers) - _MOST_STORES)]
        for name in {*gone, *(name for _, name in many)}:
            self.forget(name)
