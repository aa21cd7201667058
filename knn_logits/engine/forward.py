"""Runs one forward pass that yields the keys of whole windows: to build, check or explain.

This module knows nothing of `generate()`, which `hooks` handles.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array
from knn_logits.engine.compiled import uncompiled
from knn_logits.engine.location import KeyLocation, first_tensor
from knn_logits.engine.windows import TextWindow
from knn_logits.errors import ModelError

_thread = threading.local()


def is_own_pass() -> bool:
    """Whether this thread is in a forward pass of this module, which belongs to no `generate()`."""
    return bool(getattr(_thread, "passes", 0))


class _Reached(Exception):
    """Ends the forward pass once the key is computed, so that no later layer runs."""


def input_device(model: nn.Module) -> torch.device:
    """The device that a model expects its inputs on, which may differ from that of its weights."""
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    hook = getattr(embeddings, "_hf_hook", None)
    device = getattr(hook, "execution_device", None)
    if device is not None:
        return torch.device(device)
    places = (parameter.device for parameter in model.parameters())
    return next((place for place in places if place.type != "meta"), torch.device("cpu"))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode for a while, and then restores each module's mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def windows_batch(
    tokens: Array, windows: Sequence[TextWindow], device: torch.device
) -> dict[str, Tensor]:
    """Makes the model's inputs for windows of a text, padded on the right.

    Args:
        tokens: int32 [tokens], the text.
        windows: The windows, with their sources for an encoder-decoder model.
        device: The model's device.

    Returns:
        `input_ids`, int64 [windows, longest window], and an `attention_mask` where the lengths
        differ. With sources, these two are of the sources, and the windows are
        `decoder_input_ids` and `decoder_attention_mask`.
    """
    parts = [tokens[window.start : window.start + window.size] for window in windows]
    sources = [window.source for window in windows if window.source is not None]
    if not sources:
        return padded(parts, device)
    targets = padded(parts, device)
    return padded(sources, device) | {f"decoder_{name}": one for name, one in targets.items()}


def padded(rows: Sequence[Array], device: torch.device, fill: int = 0) -> dict[str, Tensor]:
    """Puts sequences of tokens into one tensor.

    Args:
        rows: The sequences, integers [tokens] each.
        device: The device of the tensor.
        fill: The token that fills up shorter sequences, where the mask is 0.

    Returns:
        `input_ids`, int64 [rows, longest], and an `attention_mask` where lengths differ.
    """
    longest = max(len(row) for row in rows)
    ids = np.full((len(rows), longest), fill, np.int64)
    mask = np.zeros((len(rows), longest), np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    inputs = {"input_ids": torch.from_numpy(ids).to(device)}
    if not mask.all():
        inputs["attention_mask"] = torch.from_numpy(mask).to(device)
    return inputs


def key_states(model: nn.Module, location: KeyLocation, inputs: Mapping[str, Tensor]) -> Tensor:
    """Computes the keys of a batch, without running the layers after them.

    Args:
        model: The model, in evaluation mode.
        location: Where the key is.
        inputs: The arguments of the model's forward pass: `input_ids` and so on, [rows, tokens].

    Returns:
        [rows, tokens, dim], in the model's precision, on the key's device.

    Raises:
        ModelError: when the module did not run, or its tensor has another shape.
    """
    return states_at(model, [location], inputs)[0]


def states_at(
    model: nn.Module, locations: Sequence[KeyLocation], inputs: Mapping[str, Tensor]
) -> list[Tensor]:
    """Computes the keys of a batch at several places in one pass, as `key_states` does for one.

    Args:
        model: The model, in evaluation mode.
        locations: The places, which may share a module.
        inputs: The arguments of the model's forward pass: `input_ids` and so on, [rows, tokens].

    Returns:
        [rows, tokens, dim] for each place, in the model's precision.

    Raises:
        ModelError: when a module did not run, or its tensor has another shape.
    """
    states, _ = _run(model, locations, inputs, until_keys=not hasattr(model, "hf_device_map"))
    return states


def key_states_and_logits(
    model: nn.Module, location: KeyLocation, inputs: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Computes the keys of a batch together with the model's own scores.

    Returns:
        states: [rows, tokens, dim].
        logits: [rows, tokens, vocabulary].

    Raises:
        ModelError: when the module did not run, or its tensor has another shape.
    """
    states, output = _run(model, [location], inputs, until_keys=False)
    return states[0], output.logits


def _run(
    model: nn.Module,
    locations: Sequence[KeyLocation],
    inputs: Mapping[str, Tensor],
    *,
    until_keys: bool,
) -> tuple[list[Tensor], Any]:
    owner = threading.get_ident()
    taken: dict[KeyLocation, Tensor] = {}

    def take(location: KeyLocation, value: Any) -> None:
        # Another thread may be generating with the same model.
        if threading.get_ident() != owner:
            return
        # A module that several layers share runs several times. Its first run gives the key, as in
        # `hooks`.
        if location in taken:
            return
        if not isinstance(value, Tensor):
            raise ModelError(f"no tensor passes through {location}; name another key with --key")
        taken[location] = value
        if until_keys and len(taken) == len(set(locations)):
            raise _Reached

    def hooked(location: KeyLocation) -> Any:
        # PyTorch calls this without `kwargs` in another thread's pass, where that pass listed its
        # hooks before this one was removed.
        def on_input(
            _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
        ) -> None:
            if kwargs is not None:
                take(location, first_tensor(args, kwargs))

        def on_output(_: nn.Module, __: Any, output: Any) -> None:
            take(location, output[0] if isinstance(output, (tuple, list)) else output)

        module = model.get_submodule(location.module)
        if location.side == "input":
            return module.register_forward_pre_hook(on_input, with_kwargs=True)
        return module.register_forward_hook(on_output)

    handles = [hooked(location) for location in locations]
    output = None
    accepted = inspect.signature(model.forward).parameters
    extra: dict[str, Any] = {"use_cache": False} if "use_cache" in accepted else {}
    _thread.passes = getattr(_thread, "passes", 0) + 1
    try:
        with uncompiled(model), torch.inference_mode():
            output = model(**inputs, **extra)
    except _Reached:
        pass
    finally:
        _thread.passes -= 1
        for handle in handles:
            handle.remove()
    missing = next((one for one in locations if one not in taken), None)
    if missing is not None:
        raise ModelError(f"{missing} did not run in a forward pass; name another key with --key")
    rows_tokens = inputs.get("decoder_input_ids", inputs["input_ids"]).shape
    return [as_rows(taken[one], rows_tokens, one) for one in locations], output


def as_rows(states: Tensor, rows_tokens: torch.Size, location: KeyLocation) -> Tensor:
    """Gives states the shape [rows, tokens, dim], also if the model flattens them.

    Raises:
        ModelError: when the states do not have one vector for each token.
    """
    rows, tokens = rows_tokens
    if states.dim() >= 2 and states.numel() == rows * tokens * states.shape[-1]:
        return states.reshape(rows, tokens, states.shape[-1])
    raise ModelError(
        f"{location} has the shape {tuple(states.shape)} for {rows} x {tokens} tokens and so does "
        "not hold one vector for each token; name another key with --key"
    )
