"""Tells cheaply whether a model may have changed since an earlier moment."""

from __future__ import annotations

from typing import Any

from torch import nn

# The attributes of PEFT's layers that say which adapters act.
_ADAPTERS = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")


def weights_state(model: nn.Module) -> list[Any]:
    """Returns what differs once a model's modules, weights or adapters have changed.

    PyTorch counts the changes of a tensor in place, except those of `tensor.data`. A move to
    another device or precision gives another state as well.
    """
    state: list[Any] = []
    waiting, seen = [model], {id(model)}
    while waiting:
        module = waiting.pop()
        inside = module.__dict__
        state.append(id(module))
        for parameter in inside["_parameters"].values():
            if parameter is not None:
                try:
                    state += (parameter.data_ptr(), parameter._version)
                except RuntimeError:  # a tensor without memory of its own, or of inference mode
                    state.append(id(parameter))
        # An adapter can be switched without a change of any weight.
        if "_active_adapter" in inside:
            state += (str(inside.get(name)) for name in _ADAPTERS)
        for inner in inside["_modules"].values():
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)
    return state
