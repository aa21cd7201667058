"""Who is asking: what stands around a forward pass, or around a call of a logits processor.

`generate()` tells a processor the ids and the scores. It does not tell whether a forward pass was
its own or another processor's, whether an assistant asks, which rows have ended, and where one
generation ends and the next begins. The stack does: every processor is called by a
`LogitsProcessorList`, of which each generation makes one, and every draft by a candidate generator.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor
from transformers import LogitsProcessorList

_CALL = LogitsProcessorList.__call__.__code__
# The method by which every candidate generator of assisted decoding makes its drafts.
_DRAFT = "get_candidates"
# A local variable of the loops that fill up ended rows: 1 for a row that goes on, 0 for the others.
_GOING_ON = "unfinished_sequences"


@dataclass(frozen=True)
class Place:
    """Where on the stack something happens.

    Attributes:
        depth: Processor lists that are being called. A forward pass of a generation stands one
            less deep than the calls of its processors; one made by a processor, as deep as these.
        drafts: Whether a candidate generator is at work: an assistant, or made-up scores.
        lists: The innermost list's frame.
    """

    depth: int
    drafts: bool
    lists: FrameType | None = None


def place() -> Place:
    """Where the caller stands."""
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
    # A function's are a copy, until Python 3.13, which would keep all its values alive; a module's
    # are the module.
    if type(names) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        names.clear()
    return value


@dataclass
class Call:
    """One call of a logits processor.

    Attributes:
        processors: The list that it is called from, of which each `generate()` has its own; None
            in a loop that calls the processor directly.
        going_on: int64 [rows], 0 for rows that only get padding from here on; None when unknown.
        depth: See `Place`; of the forward passes that the call can be about.
        drafts: See `Place`.
    """

    processors: Any
    going_on: Tensor | None
    depth: int
    drafts: bool

    @classmethod
    def now(cls) -> Call:
        """The call that is being made."""
        here = place()
        going_on = _local(here.lists.f_back, _GOING_ON) if here.lists is not None else None
        return cls(
            processors=_local(here.lists, "self"),
            going_on=going_on if isinstance(going_on, Tensor) else None,
            depth=max(0, here.depth - 1),
            drafts=here.drafts,
        )


class Course:
    """The calls of one generation, as far as they have come.

    Args:
        call: Its first call.
        length: Tokens there.
        whole: Whether the forward pass read the whole text.
    """

    def __init__(self, call: Call, length: int, whole: bool) -> None:
        self._processors = _reference(call.processors)
        self._first = self._longest = length
        self._cached = not whole

    def goes_on(self, call: Call, length: int, *, whole: bool) -> bool:
        """Whether the first call about a forward pass belongs to this generation, and notes it.

        Args:
            call: That call.
            length: Tokens there: between those of the pass before and one more than its last call
                had, since candidates may have been rejected.
            whole: Whether the forward pass read the whole text: after passes that read the new
                tokens only, that is another generation.
        """
        processors = None if self._processors is None else self._processors()
        if processors is not call.processors or (whole and self._cached):
            return False
        if not self._first < length <= self._longest + 1:
            return False
        self._first = self._longest = length
        self._cached = self._cached or not whole
        return True

    def note(self, length: int) -> None:
        """Notes a further call about the same forward pass."""
        self._longest = length


def _reference(processors: Any) -> weakref.ref[Any] | None:
    return None if processors is None else weakref.ref(processors)
