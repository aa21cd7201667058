"""Bounds the memory that a model in half precision takes on a processor.

oneDNN keeps compiled code for each number of rows that a linear layer gets, 2.7 MB for each new
length of a text with four layers, and gives none of it back. So rows are padded to a few numbers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Numbers of rows between a power of two and the next.
_STEPS = 8


def pad_rows(model: Any) -> None:
    """Makes the linear layers of a model in half precision on a processor pad their rows."""
    if getattr(model, "dtype", None) not in (torch.float16, torch.bfloat16):
        return
    for module in model.modules() if model.device.type == "cpu" else ():
        if type(module) is nn.Linear and "forward" not in vars(module):
            module.forward = partial(_padded, module)  # type: ignore[method-assign]


def _padded(module: nn.Linear, states: Tensor) -> Tensor:
    rows = states.shape[:-1].numel()
    step = max(1, (1 << rows.bit_length()) // (2 * _STEPS))
    missing = -rows % step
    if not missing:
        return F.linear(states, module.weight, module.bias)
    flat = F.pad(states.reshape(rows, -1), (0, 0, 0, missing))
    found = F.linear(flat, module.weight, module.bias)[:rows]
    return found.reshape(*states.shape[:-1], -1)
