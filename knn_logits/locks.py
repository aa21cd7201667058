"""Locks that a fork finds open, and properties that are computed once without a lock.

A fork has one thread only, but all locks of its parent. A lock that another thread held is held
forever there. A Space that lends a GPU runs each request in a fork, beside the threads of others.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakSet

__all__ = ["Lock", "cached_property"]


class Lock:
    """A lock for the `with` statement. In a fork it is open, unless the fork's own thread has it.

    What it guards must be whole between any two steps of the thread that holds it.
    """

    def __init__(self) -> None:
        self._lock, self._owner = threading.Lock(), 0
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._owner = 0
        self._lock.release()

    def renew(self) -> None:
        """Opens the lock in a fork."""
        if self._owner != threading.get_ident():
            self._lock, self._owner = threading.Lock(), 0


_locks: WeakSet[Lock] = WeakSet()


def _renew_all() -> None:
    for one in _locks:
        one.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property(functools.cached_property):
        """That of Python 3.12. Before, all instances of a class shared one lock for a property."""

        def __get__(self, instance, owner=None):
            """Returns the value, which is computed if the instance has none yet."""
            if instance is None:
                return self
            if self.attrname not in instance.__dict__:
                instance.__dict__[self.attrname] = self.func(instance)
            return instance.__dict__[self.attrname]
