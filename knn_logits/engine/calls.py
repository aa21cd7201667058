"""Finds out from the call stack which `generate()` calls a logits processor."""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import Tensor
from transformers import LogitsProcessorList

_CALL = LogitsProcessorList.__call__.__code__
# The method by which every candidate generator of assisted decoding makes its drafts.
_DRAFT = "get_candidates"


class Call:
    """The call of a logits processor that is running.

    Attributes:
        drafts: Whether a candidate generator makes it, with scores of an assistant.
        processors: The list of processors, which each `generate()` makes anew; None without one.
        config: The `generation_config` of the loop that called the list; None without one.
        going_on: int64 [rows], 0 for rows that had ended and get only padding; None if unknown.
    """

    def __init__(self) -> None:
        lists = next((frame for frame in _stack() if frame.f_code is _CALL), None)
        self.drafts = any(frame.f_code.co_name == _DRAFT for frame in _stack())
        self.processors = _local(lists, "self")
        loop = None if lists is None else lists.f_back
        self.config: Any = _local(loop, "generation_config")
        going_on = _local(loop, "unfinished_sequences")
        self.going_on = going_on if isinstance(going_on, Tensor) else None


def is_within_step() -> bool:
    """Whether a processor or a candidate generator makes the forward pass that is running."""
    return any(frame.f_code is _CALL or frame.f_code.co_name == _DRAFT for frame in _stack())


def _stack() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _local(frame: FrameType | None, name: str) -> Any:
    if frame is None:
        return None
    names = frame.f_locals
    value = names.get(name)
    # Before Python 3.13 the local variables of a function are a copy, which would keep all their
    # values alive. Those of a module are the module itself.
    if type(names) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        names.clear()
    return value


class Course:
    """The calls that one generation has made so far.

    Attributes:
        start: The length of its prompt.
        config: Its `generation_config`; None if it is unknown.
        recording: What the processor's recorder keeps of it.
    """

    def __init__(self, call: Call, length: int) -> None:
        self._processors = None if call.processors is None else weakref.ref(call.processors)
        self.start = self._first = self._longest = length
        self.config = call.config
        self.recording: Any = None

    def goes_on(self, call: Call, length: int, *, again: bool) -> bool:
        """Whether a call belongs to this generation; it is then noted."""
        processors = None if self._processors is None else self._processors()
        fits = again or self._first < length <= self._longest + 1
        if processors is not call.processors or not fits:
            return False
        self._longest = length
        self._first = self._first if again else length
        return True


class Courses(threading.local):
    """The latest generation of each thread; None before the first."""

    latest: Course | None = None

    def follow(self, call: Call, length: int, *, again: bool) -> tuple[Course, bool]:
        """The generation of a call, and whether it begins with the call.

        `again` says whether the call's forward pass has answered a call before.
        """
        if self.latest is not None and self.latest.goes_on(call, length, again=again):
            return self.latest, False
        self.latest = Course(call, length)
        return self.latest, True
