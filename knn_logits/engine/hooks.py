"""Takes the states during `generate()`, and finds the state that a processor's call is about.

The latest pass may be of another text. So a call is answered by the latest one that has its ids.
Passes that a processor or a candidate generator makes within a step are not kept.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import LogitsProcessorList
from transformers.modeling_outputs import CausalLMOutputWithPast

from knn_logits.engine.location import KeyLocation, decoder_of, is_encoder_decoder

_Hook = TypeVar("_Hook", bound=Callable[..., None])
_CALL = LogitsProcessorList.__call__.__code__
# The method by which every candidate generator of assisted decoding makes its drafts.
_DRAFT = "get_candidates"
# Passes kept of each thread: that of the call, and those of others after it.
_MOST_WINDOWS = 4
# The argument of a model that holds the cache, and the field of its output: the new name is that of
# transformers 5.24.
CACHE_NAME = "cache" if hasattr(CausalLMOutputWithPast, "cache") else "past_key_values"
# Its names where a decoder is called, old ones included.
_CACHE_NAMES = ("cache", "past_key_values", "cache_params")


class _KeyPasses(threading.local):
    """The number of this thread's passes of `engine.forward`, which are of no `generate()`."""

    number = 0


KEY_PASSES = _KeyPasses()


@dataclass(eq=False)
class Window:
    """One forward pass."""

    # Number of tokens in the cache before the pass: a tensor for a static cache, None if unknown.
    start: int | Tensor | None
    ids: Tensor  # int64 [rows, tokens], on the CPU once a call has compared them
    states: Tensor  # [rows, tokens, dim]
    latest: int = -1  # the last position that a call was about; each is asked for once
    answers: dict[int, Any] = field(default_factory=dict)  # the processor's, by position


class _ThreadState(threading.local):
    """The records of one thread's forward passes."""

    def __init__(self) -> None:
        self.windows: deque[Window] = deque(maxlen=_MOST_WINDOWS)
        self.open: tuple[int | Tensor | None, Tensor] | None = None  # `start` and `ids` of a pass
        self.outer_ids: Tensor | None = None


def _untraced(hook: _Hook) -> _Hook:
    """`torch.compiler.disable` where something is compiled: its import takes five seconds.

    The compiler must not trace hooks: they keep tensors and read the length of a cache.
    """
    disabled: list[Any] = []

    @wraps(hook)
    def called(*args: Any, **kwargs: Any) -> None:
        if "torch._dynamo" not in sys.modules:
            hook(*args, **kwargs)
            return
        if not disabled:
            disabled.append(torch.compiler.disable(hook))
        disabled[0](*args, **kwargs)

    return called  # type: ignore[return-value]


def _is_compiled(model: nn.Module) -> bool:
    """Whether the model or a part of it was compiled, in any of PyTorch's ways."""
    return "torch._dynamo" in sys.modules and any(
        hasattr(own.get("forward"), "_torchdynamo_orig_callable")
        or own.get("_compiled_call") is not None
        or own.get("_compiled_call_impl") is not None
        or "_orig_mod" in own["_modules"]
        for own in map(vars, model.modules())
    )


def _forget_compiled(model: nn.Module) -> None:
    """Drops the compiled code. PyTorch then compiles again, with the present hooks."""
    if _is_compiled(model):
        sys.modules["torch._dynamo"].reset()


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Runs the model without its compiled code for a while, so that every hook is called."""
    if not _is_compiled(model):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def hook_key(model: nn.Module, location: KeyLocation, take: Callable[[Any], None]) -> Any:
    """Calls `take` with what passes at a location; returns the handle that removes the hook.

    If another thread removes it during a pass, PyTorch calls it once more without `last`.
    """
    takes_input = location.side == "input"

    @_untraced
    def on_key(_: nn.Module, args: tuple[Any, ...], last: Any = None) -> None:
        # `last` has the keyword arguments of the module, or its output.
        if last is not None:
            take(first_tensor(args, last) if takes_input else first_output(last))

    module = model.get_submodule(location.module)
    if takes_input:
        return module.register_forward_pre_hook(on_key, with_kwargs=True)
    return module.register_forward_hook(on_key)


class _Hooks:
    """The hook functions. They hold the states of each thread, and no part of the processor."""

    def __init__(self, model: nn.Module, decoder: nn.Module) -> None:
        self.thread = _ThreadState()
        self._decoder = weakref.ref(decoder)
        self._model_names = list(inspect.signature(model.forward).parameters)
        self._names = list(inspect.signature(decoder.forward).parameters)
        self._ids_name = "decoder_input_ids" if is_encoder_decoder(model) else "input_ids"

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hooks:
        return self  # a copied model has its own decoder

    @_untraced
    def on_model(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        given = {**dict(zip(self._model_names, args, strict=False)), **(kwargs or {})}
        self.thread.outer_ids = given.get(self._ids_name)

    @_untraced
    def on_decoder(
        self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        thread = self.thread
        outer, thread.open, thread.outer_ids = thread.outer_ids, None, None
        trains = decoder.training and torch.is_grad_enabled()
        if kwargs is None or trains or KEY_PASSES.number or decoder is not self._decoder():
            return
        call = Call()
        if call.processors is not None or call.drafts:
            return
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        # Some models embed the ids before the decoder.
        ids = outer if given.get("input_ids") is None else given["input_ids"]
        start = None
        for name in _CACHE_NAMES:
            if name in given or name in self._names:
                start = _cache_length(given.get(name))
                break
        if isinstance(ids, Tensor):
            thread.open = start, ids

    def on_key(self, states: Any) -> None:
        thread = self.thread
        if thread.open is None:
            return
        (start, ids), thread.open = thread.open, None
        if not isinstance(states, Tensor) or states.numel() != ids.numel() * states.shape[-1]:
            return  # not one vector per token, such as with embeddings before the ids
        # A copy is needed: CUDA graphs reuse the memory of their output, and a network may work in
        # place.
        copied = states.detach().clone().view(*ids.shape, -1)
        thread.windows.append(Window(start, ids, copied))


def first_output(output: Any) -> Any:
    """Returns the states among a module's outputs: the output itself, or the first of several."""
    several = isinstance(output, (tuple, list)) or hasattr(output, "to_tuple")
    return output[0] if several else output


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the states among a module's arguments: the first tensor, positional ones first."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value
    return None


def _cache_length(cache: Any) -> int | Tensor | None:
    if cache is None:
        return 0
    if not hasattr(cache, "get_seq_length"):
        return None
    try:
        value = cache.get_seq_length()
    except ValueError:  # a cache of recurrent states only, which counts no tokens
        return None
    if isinstance(value, Tensor):  # a static cache counts in place
        return value.clone()
    if value:
        return int(value)
    # The first layer may keep its states elsewhere.
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    lengths = [layer.get_seq_length() for layer in layers if hasattr(layer, "get_seq_length")]
    return max(map(int, lengths), default=0)


class StateCapture:
    """Attaches to a model and finds the states that a call of a logits processor is about."""

    def __init__(self, model: nn.Module, location: KeyLocation) -> None:
        decoder = decoder_of(model)
        hooks = _Hooks(model, decoder)
        handles = [decoder.register_forward_pre_hook(hooks.on_decoder, with_kwargs=True)]
        if decoder is not model:
            handles.append(model.register_forward_pre_hook(hooks.on_model, with_kwargs=True))
        handles.append(hook_key(model, location, hooks.on_key))
        _forget_compiled(model)
        self._thread = hooks.thread
        self._finalizer = weakref.finalize(self, _detach, handles, weakref.ref(model))
        self._finalizer.atexit = False

    def close(self) -> None:
        """Removes the hooks, so that the model is as it was. A second call has no effect."""
        self._finalizer()

    def find(self, input_ids: Tensor) -> tuple[Window, int, Tensor] | None:
        """Finds the pass and the position that gave a call's scores, and its ids on the CPU."""
        windows = self._thread.windows
        if any(ids.device.type != "cpu" for ids in (input_ids, *(one.ids for one in windows))):
            input_ids = _on_host(input_ids, windows)
        rows, length = input_ids.shape
        for window in reversed(windows):
            tokens = window.ids.shape[1]
            start = length - tokens if window.start is None else int(window.start)
            position = length - 1 - start
            if window.ids.shape[0] != rows or start < 0 or not window.latest < position < tokens:
                continue
            if torch.equal(window.ids[:, : position + 1], input_ids[:, start:]):
                window.latest = position
                return window, position, input_ids
        return None


def _on_host(input_ids: Tensor, windows: deque[Window]) -> Tensor:
    """Copies the ids of a call and of its passes to the CPU, all at once: each copy waits."""
    far = [window for window in windows if window.ids.device.type != "cpu"]
    # A static cache counts on the device.
    starts = {place: one.start for place, one in enumerate(far) if isinstance(one.start, Tensor)}
    tensors = [input_ids, *(window.ids for window in far), *starts.values()]
    device = far[0].ids.device if far else input_ids.device
    flat = torch.cat([tensor.reshape(-1).to(device) for tensor in tensors]).cpu()
    on_host: Tensor
    on_host, *parts = flat.split([tensor.numel() for tensor in tensors])
    for window, ids in zip(far, parts, strict=False):
        window.ids = ids.view(window.ids.shape)
    for place, start in zip(starts, parts[len(far) :], strict=True):
        far[place].start = int(start)
    return on_host.view(input_ids.shape)


def _detach(handles: list[Any], model: weakref.ref[nn.Module]) -> None:
    for handle in handles:
        handle.remove()
    alive = model()
    if alive is not None:
        _forget_compiled(alive)


class Call:
    """The call of a logits processor that is running."""

    def __init__(self) -> None:
        # Whether a candidate generator makes it, with scores of an assistant
        lists, self.drafts = None, False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if lists is None and frame.f_code is _CALL:
                lists = frame
            self.drafts = self.drafts or frame.f_code.co_name == _DRAFT
            frame = frame.f_back
        loop = None if lists is None else lists.f_back
        # Each `generate()` makes a list of processors and a configuration; None outside of it.
        self.processors = _local(lists, "self")
        self.config: Any = _local(loop, "generation_config")
        # int64 [rows], 0 for rows that had ended and get only padding; None if unknown.
        going_on = _local(loop, "unfinished_sequences")
        self.going_on = going_on if isinstance(going_on, Tensor) else None


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
    """The calls that one generation has made so far."""

    def __init__(self, call: Call, length: int) -> None:
        self.processors = None if call.processors is None else weakref.ref(call.processors)
        self.start = self.first = self.longest = length  # `start` is that of its prompt
        self.ends: list[int] = []  # the tokens that end its texts
        self.recording: Any = None  # what the processor's recorder keeps of it


class Courses(threading.local):
    """The latest generation of each thread; None before the first."""

    latest: Course | None = None

    def follow(self, call: Call, length: int, *, again: bool) -> tuple[Course, bool]:
        """A call's generation, and whether it begins here; `again` for a pass that answered one."""
        course = self.latest
        if course is not None and (again or course.first < length <= course.longest + 1):
            processors = None if course.processors is None else course.processors()
            if processors is call.processors:
                course.longest = length
                course.first = course.first if again else length
                return course, False
        self.latest = Course(call, length)
        return self.latest, True
