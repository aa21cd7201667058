"""Runs one forward pass that yields the keys of whole windows: to build, check or explain."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from knn_logits.arrays import Array
from knn_logits.engine.hooks import KEY_PASSES, hook_key, uncompiled
from knn_logits.engine.location import KeyLocation
from knn_logits.errors import ModelError


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


@torch.no_grad()
def log_prob(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Scores an answer of at least one token after a prompt in one pass.

    The difference that a passage in the prompt makes is the leave-one-out attribution of
    Cohen-Wang et al. (2024), "ContextCite", section 2.
    """
    ids = torch.tensor([[*prompt, *answer]], device=input_device(model))
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(answer) + 1).logits
    log_p = torch.log_softmax(logits[0, -len(answer) - 1 : -1].float(), dim=-1)
    tokens = ids[0, len(prompt) :, None].to(log_p.device)
    return float(log_p.gather(1, tokens).sum())


def padded(rows: Sequence[Array], device: torch.device, fill: int = 0) -> dict[str, Tensor]:
    tensors = [torch.from_numpy(np.array(row, np.int64)) for row in rows]
    inputs = {"input_ids": pad_sequence(tensors, True, fill).to(device)}
    mask = pad_sequence([torch.ones_like(tensor) for tensor in tensors], True)
    if not mask.all():
        inputs["attention_mask"] = mask.to(device)
    return inputs


def key_states(model: nn.Module, location: KeyLocation, inputs: Mapping[str, Tensor]) -> Tensor:
    """Computes the keys of a batch, without running the layers after them."""
    return _run(model, location, inputs, until_keys=not hasattr(model, "hf_device_map"))[0]


def key_states_and_logits(
    model: nn.Module, location: KeyLocation, inputs: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    states, output = _run(model, location, inputs, until_keys=False)
    return states, output.logits


def _run(
    model: nn.Module, location: KeyLocation, inputs: Mapping[str, Tensor], *, until_keys: bool
) -> tuple[Tensor, Any]:
    owner = threading.get_ident()
    taken: list[Tensor] = []

    def take(value: Any) -> None:
        # Another thread may be generating with the same model. A module that several layers share
        # runs several times, and its first run gives the key.
        if taken or threading.get_ident() != owner:
            return
        if not isinstance(value, Tensor):
            raise ModelError(f"no tensor passes through {location}; choose another key with --key")
        taken.append(value)
        if until_keys:
            raise _Reached

    handle = hook_key(model, location, take)
    output = None
    accepted = inspect.signature(model.forward).parameters
    extra: dict[str, Any] = {"use_cache": False} if "use_cache" in accepted else {}
    if until_keys and "keys_only" in accepted:
        extra["keys_only"] = True
    KEY_PASSES.number += 1
    try:
        with uncompiled(model), torch.inference_mode():
            output = model(**(extra | dict(inputs)))
    except _Reached:
        pass
    finally:
        KEY_PASSES.number -= 1
        handle.remove()
    if not taken:
        raise ModelError(f"{location} did not run in a forward pass; choose another key with --key")
    (states,) = taken
    rows, tokens = inputs.get("decoder_input_ids", inputs["input_ids"]).shape
    if states.dim() < 2 or states.numel() != rows * tokens * states.shape[-1]:
        raise ModelError(
            f"{location} has the shape {tuple(states.shape)} for {rows} x {tokens} tokens, not one "
            "vector per token; choose another key with --key"
        )
    # Some models put all tokens into one row.
    return states.reshape(rows, tokens, -1), output


# The instructions that multiply in half precision, by their names in torch.
_INSTRUCTIONS = {
    torch.bfloat16: ("amx_bf16", "avx512_bf16", "bf16"),
    torch.float16: ("amx_fp16", "avx512_fp16", "fp16_arith"),
}


def multiplies_in(dtype: torch.dtype) -> bool:
    """Whether the processor multiplies in a half precision; False if torch cannot say."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(found.get(name) for name in _INSTRUCTIONS[dtype])


def use_fastest_dtype(model: nn.Module) -> str | None:
    """Converts a model to float32 where the processor emulates its half precision.

    Args:
        model: The model, as it was loaded. It may be changed.

    Returns:
        The choice and its reason, as a sentence; None where the model stays as it is: on a GPU, in
        another precision than float16 or bfloat16, or without memory for float32.
    """
    parameters = list(model.parameters())
    stored = {one.dtype for one in parameters} - {torch.float32}
    if any(one.device.type != "cpu" for one in parameters) or len(stored) != 1:
        return None
    (dtype,) = stored
    if dtype not in _INSTRUCTIONS or multiplies_in(dtype):
        return None
    if 4 * sum(one.numel() for one in parameters) > _memory() / 2:
        return None
    model.float()
    return (
        "the model runs in float32, since this processor has no instructions for "
        f"{str(dtype).removeprefix('torch.')}; --dtype chooses"
    )


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # a system that does not say
        return float("inf")
