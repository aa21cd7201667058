"""Objects that threads share: locks open in a fork, a cache, copies of tensors on devices."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Copies", "Recent", "cached_property", "new_lock"]

K = TypeVar("K")
V = TypeVar("V")

# A fork has one thread, but all locks of its parent, also those that other threads held. A Space
# that lends a GPU runs each request in a fork.
_owners: WeakSet[Any] = WeakSet()


def new_lock(owner: Any) -> threading.Lock:
    """The lock that an object keeps as `_lock`. In a fork, the object gets a new one."""
    # The guarded state must be consistent at each step of the thread that holds it.
    _owners.add(owner)
    return threading.Lock()


def _renew_all() -> None:
    for owner in _owners:
        owner._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class Recent(Generic[K, V]):
    """The values used last, up to a total size, but at least one. Safe for threads."""

    def __init__(self, limit: int, size: Callable[[V], int] = lambda value: 1) -> None:
        self._limit, self._size = limit, size
        self._total = 0
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = new_lock(self)

    def take(self, keys: Iterable[K]) -> dict[K, V]:
        with self._lock:
            stored = {key: self._values[key] for key in keys if key in self._values}
            for key in stored:
                self._values.move_to_end(key)
            return stored

    def keep(self, values: Mapping[K, V]) -> None:
        """Stores values, and drops those that were used longest ago."""
        with self._lock:
            for key, value in values.items():
                if key not in self._values:
                    self._values[key] = value
                    self._total += self._size(value)
            while self._total > self._limit and len(self._values) > 1:
                self._total -= self._size(self._values.popitem(last=False)[1])


class Copies:
    """Tensors, with copies on each device that asked for them."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors
        self._copies: dict[torch.device, tuple[Tensor, ...]] = {}

    def at(self, device: torch.device) -> tuple[Tensor, ...]:
        if device not in self._copies:
            # Another thread may have made copies meanwhile, which may be in use.
            made = tuple(tensor.to(device) for tensor in self._tensors)
            self._copies.setdefault(device, made)
        return self._copies[device]


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
