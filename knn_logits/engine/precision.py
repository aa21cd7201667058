"""Chooses the precision that a model runs in on a processor."""

from __future__ import annotations

import os
import time

import torch
from torch import Tensor, nn

# A pass of so many tokens through one layer is timed, the best of so many times.
_TOKENS, _TIMES = 64, 3
# A measurement varies by some percent from run to run. float32 has to be faster by more than that,
# or else the choice, and with it the datastore, would vary too.
_MARGIN = 1.25


def use_fastest_dtype(model: nn.Module) -> str | None:
    """Converts a model on a processor to float32 if it runs faster so and loses nothing.

    A checkpoint in half precision is often slower on a processor: float16 is emulated by most of
    them. Its largest linear layer is timed in both precisions, which takes milliseconds. float32
    has to be a quarter faster, so that repeated runs make the same choice.

    Args:
        model: The model, as it was loaded. It may be changed.

    Returns:
        The choice and its reason, as a sentence; None where there was nothing to choose: on a GPU,
        in another precision than float16 and bfloat16, or without memory for float32.
    """
    parameters = list(model.parameters())
    dtype = parameters[0].dtype if parameters else None
    if dtype not in (torch.float16, torch.bfloat16):
        return None
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    head = getattr(model, "get_output_embeddings", lambda: None)()
    layers = [layer for layer in layers if layer is not head]
    size = sum(parameter.numel() for parameter in parameters)
    if not layers or parameters[0].device.type != "cpu" or 4 * size > _memory() / 2:
        return None
    weight = max((layer.weight for layer in layers), key=Tensor.numel).detach()
    stored, single = _seconds(weight), _seconds(weight.float())
    name = str(dtype).removeprefix("torch.")
    if single * _MARGIN < stored:
        model.float()
        return (
            f"the model runs in float32, {stored / single:.1f} times as fast on this processor as "
            f"in the checkpoint's {name}; --dtype chooses"
        )
    return (
        f"the model runs in the checkpoint's {name}, which takes {stored / single:.2f} of the time "
        "of float32 on this processor; --dtype chooses"
    )


def _seconds(weight: Tensor) -> float:
    states = torch.ones(_TOKENS, weight.shape[1], dtype=weight.dtype)
    best = float("inf")
    with torch.inference_mode():
        nn.functional.linear(states, weight)
        for _ in range(_TIMES):
            start = time.perf_counter()
            nn.functional.linear(states, weight)
            best = min(best, time.perf_counter() - start)
    return best


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # a system that does not say
        return float("inf")
