"""A network with one hidden layer over features of a token, and its training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.store.layout import LARGEST_IN_GATE

ARRAYS = ("mean", "scale", "hidden", "hidden_bias", "out", "out_bias")
_BATCH = 4096
# Features are clipped at so many standard deviations from the mean.
_FARTHEST = 1e15
_RATE = 0.02


class Network:
    """out · tanh(hidden · (features - mean) / scale + hidden_bias) + out_bias, from its arrays."""

    def __init__(
        self, owner: str, inputs: int, arrays: Mapping[str, Any], *, outputs: int | None = None
    ) -> None:
        units = length(owner, arrays, "hidden_bias")
        expected = {
            "mean": (inputs,),
            "scale": (inputs,),
            "hidden": (units, inputs),
            "hidden_bias": (units,),
            "out": _out_shape(units, outputs),
            "out_bias": (outputs or 1,),
        }
        self._weights = checked_arrays(owner, arrays, expected, {"scale"})

    @property
    def scaling(self) -> tuple[Tensor, Tensor]:
        """The mean and the scale of the features, float32 [features] each."""
        return self._weights["mean"], self._weights["scale"]

    def __call__(self, features: Tensor) -> Tensor:
        """[n] or [n, outputs] of features [n, features]."""
        weights = (weight.to(features.device) for weight in self._weights.values())
        mean, scale, hidden, hidden_bias, out, out_bias = weights
        # The features are clipped and the weights are bounded, so nothing here becomes infinite.
        scaled = ((features - mean) / scale).clamp(-_FARTHEST, _FARTHEST)
        inside = torch.tanh(scaled @ hidden.T + hidden_bias)
        return torch.inner(inside, out) + out_bias

    def to_arrays(self) -> dict[str, Array]:
        """Returns the network as arrays, float32."""
        return {name: weight.cpu().numpy() for name, weight in self._weights.items()}


def trained(
    features: Array,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    units: int,
    steps: int,
    decay: float,
    seed: int,
    outputs: int | None = None,
) -> dict[str, Tensor]:
    """Trains a network with AdamW; `loss` takes its outputs for some rows and their numbers."""
    read = torch.from_numpy(np.asarray(features)).float()
    inputs = read.shape[1]
    mean, scale = read.mean(0), read.std(0, correction=0)
    scale = torch.where(scale > 1e-6, scale, torch.ones_like(scale))
    read = (read - mean) / scale
    random, kind = torch.Generator().manual_seed(seed), torch.float32
    weights = [
        torch.randn(units, inputs, generator=random, dtype=kind) / inputs**0.5,
        torch.zeros(units, dtype=kind),
        torch.randn(_out_shape(units, outputs), generator=random, dtype=kind) / units**0.5,
        torch.zeros(outputs or 1, dtype=kind),
    ]
    for weight in weights:
        weight.requires_grad_()
    hidden, hidden_bias, out, out_bias = weights
    optimizer = torch.optim.AdamW(weights, lr=_RATE, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.enable_grad():
        for _ in range(steps):
            batch = torch.randint(len(read), (min(len(read), _BATCH),), generator=random)
            inside = torch.tanh(read[batch] @ hidden.T + hidden_bias)
            logits = torch.inner(inside, out) + out_bias
            optimizer.zero_grad()
            loss(logits, batch).backward()
            optimizer.step()
            schedule.step()
    arrays = {name: weight.detach() for name, weight in zip(ARRAYS[2:], weights, strict=True)}
    return {"mean": mean, "scale": scale, **arrays}


def checked_arrays(
    owner: str,
    arrays: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    positive: Collection[str],
) -> dict[str, Tensor]:
    """Checks the arrays of a gate, and returns them as tensors."""
    checked = {name: _numbers(owner, name, arrays[name]) for name in shapes}
    for name, shape in shapes.items():
        have = tuple(checked[name].shape)
        if have != shape:
            raise ConfigError(f"{name} of a {owner} must have the shape {shape}, not {have}")
        if name in positive and not bool((checked[name] > 0.0).all()):
            raise ConfigError(f"{name} of a {owner} must be above 0")
    return checked


def length(owner: str, arrays: Mapping[str, Any], name: str) -> int:
    """Returns how many numbers an array of a gate has."""
    return _numbers(owner, name, arrays[name]).numel()


def _out_shape(units: int, outputs: int | None) -> tuple[int, ...]:
    return (units,) if outputs is None else (outputs, units)


def _numbers(owner: str, name: str, values: Any) -> Tensor:
    values = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    array = np.array(values, dtype=np.float32)
    # A comparison with NaN is false, so this refuses NaN as well.
    if not array.size or not (np.abs(array) <= LARGEST_IN_GATE).all():
        raise ConfigError(
            f"{name} of a {owner} must be finite numbers, {LARGEST_IN_GATE:g} at most"
        )
    return torch.from_numpy(array)
