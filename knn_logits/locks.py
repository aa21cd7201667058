"""Locks that a fork finds open, and properties that are computed once without a lock.

A fork has one thread only, but all locks of its parent. A lock that another thread held is held
forever there. A Space that lends a GPU runs each request in a fork, beside the threads of others.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

__all__ = ["cached_property", "new_lock"]

_owners: WeakSet[Any] = WeakSet()


def new_lock(owner: Any) -> threading.Lock:
    """Makes the lock of an object, which keeps it as `_lock`. In a fork the object gets a new one.

    What the lock guards must be whole between any two steps of the thread that holds it.

        self._lock = new_lock(self)
    """
    _owners.add(owner)
    return threading.Lock()


def _renew_all() -> None:
    for owner in _owners:
        owner._lock = threading.Lock()


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
