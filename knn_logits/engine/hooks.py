"""Takes the states during `generate()`, and finds the state that a processor's call is about.

The latest state may be of another pass: candidates, guidance, an assistant, another processor. So a
call is answered by the pass that has its ids, in its depth (`calls`).
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from knn_logits.engine.calls import Call, place
from knn_logits.engine.forward import (
    as_rows,
    forget_compiled,
    in_key_pass,
    refuse_whole_graphs,
)
from knn_logits.engine.location import (
    KeyLocation,
    decoder_of,
    first_output,
    first_tensor,
    is_encoder_decoder,
)

_Hook = TypeVar("_Hook", bound=Callable[..., None])
# Windows kept for each depth: one for the call, one for a guidance pass, and one to spare.
_MOST_WINDOWS = 3
# The argument that holds the cache: the usual name, and the name in models without attention.
_CACHE_NAMES = ("past_key_values", "cache_params")


@dataclass(eq=False)
class Window:
    """One forward pass."""

    # Number of tokens in the cache before the pass: a tensor for a static cache, None if unknown.
    start: int | Tensor | None
    ids: Tensor | None  # int64 [rows, tokens]; None if the model was given embeddings
    shape: torch.Size
    depth: int  # see `calls.Place`
    cache: weakref.ref[Any] | None = None
    states: Tensor | None = None  # the captured tensor, one vector for each token
    on_host: Tensor | None = None  # `ids` on the CPU, once a call has compared them
    # [rows, tokens, width], the encoder's output or embeddings: what rows with the same ids may
    # differ in.
    encoded: Tensor | None = None
    latest: int = -1  # the last position that a call was about; each is asked for once
    answers: dict[int, Any] = field(default_factory=dict)  # the processor's, by position


class _ThreadState(threading.local):
    """The records of one thread's forward passes."""

    def __init__(self) -> None:
        self.windows: dict[int, deque[Window]] = defaultdict(lambda: deque(maxlen=_MOST_WINDOWS))
        self.cache: weakref.ref[Any] | None = None
        self.open: Window | None = None
        self.outer_ids: Tensor | None = None
        self.offset = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> _ThreadState:
        return _ThreadState()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_ThreadState, ())


def _untraced(hook: _Hook) -> _Hook:
    """`torch.compiler.disable` where something is compiled: its import takes five seconds."""
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


class _Hooks:
    """The hook functions. They hold the states of each thread, and no part of the processor."""

    def __init__(self, model: nn.Module, decoder: nn.Module, location: KeyLocation) -> None:
        self.location = location
        self.copied = False
        self.thread = _ThreadState()
        self.model_names = list(inspect.signature(model.forward).parameters)
        self.decoder_names = list(inspect.signature(decoder.forward).parameters)
        self.ids_name = "decoder_input_ids" if is_encoder_decoder(model) else "input_ids"

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"copied": True}

    # Another thread may remove the hooks during a forward pass. They are then called once more
    # without `kwargs`, and nobody will ask for those states.

    # The compiler must not trace these functions: they keep tensors across calls and read the
    # length of a cache.
    @_untraced
    def on_model(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        if kwargs is None or self.copied or in_key_pass():
            return
        ids = _argument(self.ids_name, self.model_names, args, kwargs)
        self.thread.outer_ids = ids if isinstance(ids, Tensor) else None

    @_untraced
    def on_decoder(
        self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        if in_key_pass():
            return
        thread = self.thread
        thread.open = None
        if kwargs is None or self.copied or (decoder.training and torch.is_grad_enabled()):
            return
        caller = place()
        if caller.drafts:
            return
        ids = _argument("input_ids", self.decoder_names, args, kwargs)
        embeds = _argument("inputs_embeds", self.decoder_names, args, kwargs)
        outer, thread.outer_ids = thread.outer_ids, None
        if not isinstance(ids, Tensor):
            ids = outer
        if isinstance(ids, Tensor):
            shape = ids.shape
            if isinstance(embeds, Tensor) and embeds.shape[:2] != shape:
                ids, shape = None, embeds.shape[:2]
        elif isinstance(embeds, Tensor):
            shape = embeds.shape[:2]
        else:
            return
        encoded = _argument("encoder_hidden_states", self.decoder_names, args, kwargs)
        encoded = embeds if encoded is None and ids is None else encoded
        encoded = encoded.detach() if isinstance(encoded, Tensor) else None
        start, cache = self._start(args, kwargs)
        thread.open = Window(start, ids, shape, caller.depth, cache, encoded=encoded)

    def _start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int | Tensor | None, weakref.ref[Any] | None]:
        for name in _CACHE_NAMES:
            if name in kwargs or name in self.decoder_names:
                cache = _argument(name, self.decoder_names, args, kwargs)
                counts = hasattr(cache, "get_seq_length")
                return _cache_length(cache), weakref.ref(cache) if counts else None
        return None, None

    @_untraced
    def on_input(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        if kwargs is not None:
            self._take(first_tensor(args, kwargs))

    @_untraced
    def on_output(self, _: nn.Module, __: Any, output: Any) -> None:
        self._take(first_output(output))

    def _take(self, states: Any) -> None:
        if in_key_pass():
            return
        thread = self.thread
        window, thread.open = thread.open, None
        if window is None or not isinstance(states, Tensor):
            return
        # A copy is needed: CUDA graphs reuse the memory of their output, and a network may work in
        # place.
        window.states = states.detach().clone()
        thread.windows[window.depth].append(window)


def _argument(name: str, names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name in kwargs:
        return kwargs[name]
    place = names.index(name) if name in names else len(args)
    return args[place] if place < len(args) else None


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
    return int(value) or _longest_layer(cache)


def _longest_layer(cache: Any) -> int:
    """Takes the longest layer, since the first one may keep its states elsewhere."""
    decoder = getattr(cache, "self_attention_cache", cache)
    lengths = (
        getattr(layer, "get_seq_length", lambda: 0)() for layer in getattr(decoder, "layers", ())
    )
    return max((int(length) for length in lengths), default=0)


class StateCapture:
    """Attaches to a model and finds the states that a call of a logits processor is about."""

    def __init__(self, model: nn.Module, location: KeyLocation) -> None:
        refuse_whole_graphs(model)
        decoder = decoder_of(model)
        module = model.get_submodule(location.module)
        hooks = _Hooks(model, decoder, location)
        handles = [decoder.register_forward_pre_hook(hooks.on_decoder, with_kwargs=True)]
        if decoder is not model:
            handles.append(model.register_forward_pre_hook(hooks.on_model, with_kwargs=True))
        if location.side == "input":
            handles.append(module.register_forward_pre_hook(hooks.on_input, with_kwargs=True))
        else:
            handles.append(module.register_forward_hook(hooks.on_output))
        forget_compiled(model)
        self._hooks = hooks
        self._finalizer = weakref.finalize(self, _detach, handles, weakref.ref(model))
        self._finalizer.atexit = False

    @property
    def closed(self) -> bool:
        """Whether the hooks were removed."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Removes the hooks, so that the model is as it was. A second call has no effect."""
        self._finalizer()

    def find(
        self, input_ids: Tensor, call: Call | None = None
    ) -> tuple[Window, int, Tensor] | None:
        """Finds the forward pass and the position in it that produced the scores of a call.

        Returns:
            The pass, the position, and the call's ids on the CPU; None if no pass fits.
        """
        thread, call = self._hooks.thread, call or Call.now()
        if call.drafts:
            return None
        windows = thread.windows[call.depth]
        input_ids = _on_host(input_ids, windows)
        fresh = [window for window in windows if window.latest < 0]
        spent = [window for window in reversed(windows) if window.latest >= 0]
        for group in (fresh, spent):
            for offset in dict.fromkeys((0, thread.offset)):
                chosen = _choose(group, input_ids, offset, thread.cache)
                if chosen is not None:
                    return self._answer(*chosen, input_ids, offset)
        for window in reversed(fresh):
            behind = _whole_offset(window, input_ids)
            if behind is not None:
                return self._answer(window, window.shape[1] - 1, input_ids, behind)
        return None

    def _answer(
        self, window: Window, position: int, input_ids: Tensor, offset: int
    ) -> tuple[Window, int, Tensor]:
        thread = self._hooks.thread
        thread.offset, thread.cache = offset, window.cache
        window.latest = position
        for depth in [depth for depth in thread.windows if depth >= window.depth]:
            del thread.windows[depth]
        thread.windows[window.depth].append(window)
        return window, position, input_ids

    def states(self, window: Window, first: int) -> Tensor:
        states = window.states
        assert states is not None
        if states.shape[:-1] != window.shape:
            states = as_rows(states, window.shape, self._hooks.location)
        return states[:, first:]


def _on_host(input_ids: Tensor, windows: Iterable[Window]) -> Tensor:
    """Copies the ids of a call and of its passes to the CPU, all at once: each copy waits."""
    fresh = [window for window in windows if window.on_host is None and window.ids is not None]
    counted = [window for window in fresh if isinstance(window.start, Tensor)]
    parts = [input_ids, *(window.ids for window in fresh), *(window.start for window in counted)]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if any(part.device.type != "cpu" for part in tensors):
        flat = torch.cat([part.to(input_ids.device).reshape(-1) for part in tensors]).cpu()
        copies = flat.split([part.numel() for part in tensors])
        tensors = [copy.view(part.shape) for copy, part in zip(copies, tensors, strict=True)]
    for window, ids in zip(fresh, tensors[1:], strict=False):
        window.on_host = ids
    for window, start in zip(counted, tensors[1 + len(fresh) :], strict=True):
        window.start = int(start)
    return tensors[0]


def _choose(
    windows: list[Window], input_ids: Tensor, offset: int, cache: weakref.ref[Any] | None
) -> tuple[Window, int] | None:
    """Chooses the window that has the call's ids, and the position in it."""
    positions = [(window, _position(window, input_ids, offset)) for window in windows]
    matches = [(window, position) for window, position in positions if position is not None]
    continued = [match for match in matches if cache is not None and match[0].cache is cache]
    whole = [match for match in matches if match[1] + 1 == input_ids.shape[1]]
    if continued or whole:
        return (continued or whole)[-1]
    return max(matches, key=lambda match: match[1], default=None)


def _position(window: Window, input_ids: Tensor, offset: int) -> int | None:
    rows, length = input_ids.shape
    if window.on_host is None or window.shape[0] != rows:
        return None
    tokens = window.shape[1]
    start = length + offset - tokens if window.start is None else int(window.start)
    position = length - 1 + offset - start
    first = start - offset
    if not window.latest < position < tokens or first < 0:
        return None
    same = torch.equal(window.on_host[:, : position + 1], input_ids[:, first:length])
    return position if same else None


def _whole_offset(window: Window, input_ids: Tensor) -> int | None:
    """The offset between a call's ids and the cache's positions, at a sequence's first call."""
    rows, length = input_ids.shape
    if window.shape[0] != rows:
        return None
    tokens = window.shape[1]
    if window.ids is None and (window.start is not None or tokens >= length):
        return int(window.start or 0) + tokens - length
    if window.start is None or window.on_host is None:
        return None
    if tokens == length and torch.equal(window.on_host, input_ids):
        return int(window.start)
    return None


def _detach(handles: list[Any], model: weakref.ref[nn.Module]) -> None:
    for handle in handles:
        handle.remove()
    alive = model()
    if alive is not None:
        forget_compiled(alive)
