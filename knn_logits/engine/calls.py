"""Finds out from the call stack who made a forward pass, or who called a logits processor."""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

_CALL = LogitsProcessorList.__call__.__code__
# The method by which every candidate generator of assisted decoding makes its drafts.
_DRAFT = "get_candidates"
# A local variable of the loops that pad ended rows: 1 for a row that continues, 0 for an ended row.
_GOING_ON = "unfinished_sequences"


@dataclass(frozen=True)
class Place:
    """A place on the call stack."""

    # Number of processor lists on the stack. A pass of a generation is one less deep than the calls
    # of its processors, and a pass that a processor makes is as deep as those.
    depth: int
    drafts: bool  # whether a candidate generator is on the stack: an assistant or made-up scores
    lists: FrameType | None = None


def place() -> Place:
    depth, drafts, innermost = 0, False, None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is _CALL:
            depth += 1
            innermost = innermost or frame
        elif code.co_name == _DRAFT:
            drafts = True
        frame = frame.f_back
    return Place(depth, drafts, innermost)


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


def local_of_caller(name: str) -> Any:
    """A local variable of the loop that called the innermost processor list; None without it."""
    lists = place().lists
    return None if lists is None else _local(lists.f_back, name)


@dataclass
class Call:
    """One call of a logits processor."""

    processors: Any
    going_on: Tensor | None  # int64 [rows], 0 for rows that get only padding from here on
    depth: int
    drafts: bool

    @classmethod
    def now(cls) -> Call:
        caller = place()
        going_on = _local(caller.lists.f_back, _GOING_ON) if caller.lists is not None else None
        return cls(
            processors=_local(caller.lists, "self"),
            going_on=going_on if isinstance(going_on, Tensor) else None,
            depth=max(0, caller.depth - 1),
            drafts=caller.drafts,
        )


class Course:
    """The calls that one generation has made so far."""

    def __init__(self, call: Call, length: int) -> None:
        self._processors = None if call.processors is None else weakref.ref(call.processors)
        self.start = self._first = self._longest = length
        self.sources: Tensor | None = (
            None  # int64 [rows], a number for what each row's encoder read
        )
        self.recording: Any = None

    def texts(self, input_ids: Tensor) -> Tensor:
        """The ids of texts, with a number for their encoder inputs before them."""
        if self.sources is None or len(self.sources) != len(input_ids):
            return input_ids
        # Rows with different encoder inputs are different texts. No token is negative.
        return torch.cat([-1 - self.sources.unsqueeze(1), input_ids], dim=-1)

    def has(self, call: Call) -> bool:
        """Whether this generation's list of processors makes a call."""
        processors = None if self._processors is None else self._processors()
        return processors is call.processors

    @property
    def ended(self) -> bool:
        """Whether nothing can call for this generation any more, as far as that is certain."""
        return self._processors is None or self._processors() is None

    def goes_on(self, call: Call, length: int) -> bool:
        """Decides whether the first call about a forward pass belongs to this generation."""
        if not self.has(call) or not self._first < length <= self._longest + 1:
            return False
        self._first = self._longest = length
        return True

    def note(self, length: int) -> None:
        self._longest = length


class Courses(threading.local):
    """The generations of one thread, the latest first. One may be made within another."""

    def __init__(self) -> None:
        self._courses: list[Course] = []

    @property
    def latest(self) -> Course | None:
        """The generation of this thread's latest call."""
        return next(iter(self._courses), None)

    def follow(self, call: Call, length: int, *, again: bool) -> tuple[Course, bool]:
        """The generation of a call, which is noted there, and whether it begins with the call.

        `again` says whether the call's forward pass has answered a call before.
        """
        courses = self._courses
        if courses and again:
            course = next((course for course in courses if course.has(call)), courses[0])
            course.note(length)
            found: Course | None = course
        else:
            found = next((one for one in courses if one.goes_on(call, length)), None)
        course = found or Course(call, length)
        others = (other for other in courses if other is not course and not other.ended)
        self._courses = [course, *others]
        return course, found is None
