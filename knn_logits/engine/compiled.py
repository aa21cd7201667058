"""Handles models that `torch.compile` has compiled. Their code does not see later hooks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

# Where transformers and PyTorch keep the compiled form of a module's call.
_CALLS = ("_compiled_call", "_compiled_call_impl")
# The attributes by which a compiled function and a compiled module refer to the original.
_FUNCTION, _MODULE = "_torchdynamo_orig_callable", "_orig_mod"


def original(module: nn.Module) -> nn.Module:
    """Returns the module that `torch.compile(module)` has wrapped."""
    found: Any = vars(module).get("_modules", {}).get(_MODULE, module)
    assert isinstance(found, nn.Module)
    return found


def is_compiled(model: nn.Module) -> bool:
    """Whether the model or a part of it was compiled, in any of PyTorch's ways."""
    return "torch._dynamo" in sys.modules and any(map(_is_compiled, model.modules()))


def _is_compiled(module: nn.Module) -> bool:
    own = vars(module)
    return (
        any(own.get(name) is not None for name in _CALLS)
        or hasattr(own.get("forward"), _FUNCTION)
        or original(module) is not module
    )


def forget_compiled(model: nn.Module) -> None:
    """Drops the compiled code. PyTorch then compiles again, with the present hooks."""
    if is_compiled(model):
        sys.modules["torch._dynamo"].reset()


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Runs the model without its compiled code for a while, so that every hook is called."""
    if not is_compiled(model):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
