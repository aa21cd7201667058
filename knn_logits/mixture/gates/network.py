"""A network with one hidden layer over features of a token, and its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.locks import Copies

ARRAYS = ("mean", "scale", "hidden", "hidden_bias", "out", "out_bias")
_BATCH = 4096
# Features are clipped at this many standard deviations from the mean.
_MAX_DEVIATIONS = 4.0
_RATE = 0.02


class Network:
    """out · tanh(hidden · (features - mean) / scale + hidden_bias) + out_bias, from its arrays."""

    def __init__(self, owner: str, inputs: int, arrays: Mapping[str, Any], outputs: int) -> None:
        self._weights = {
            name: torch.from_numpy(np.array(arrays[name], np.float32)) for name in ARRAYS
        }
        units = self._weights["hidden_bias"].numel()
        expected = {
            "mean": (inputs,),
            "scale": (inputs,),
            "hidden": (units, inputs),
            "hidden_bias": (units,),
            "out": (outputs, units),
            "out_bias": (outputs,),
        }
        for name, shape in expected.items():
            have = tuple(self._weights[name].shape)
            if have != shape:
                raise ConfigError(f"{name} of a {owner} must have the shape {shape}, not {have}")
        if not units or not bool((self._weights["scale"] > 0.0).all()):
            raise ConfigError(f"a {owner} must have units, and scales above 0")
        self._copies = Copies(**self._weights)

    def __call__(self, features: Tensor) -> Tensor:
        """float32 [n, outputs] of features, float32 [n, features]."""
        at, device = self._copies.at, features.device
        mean, scale = at(device, "mean"), at(device, "scale")
        hidden, hidden_bias = at(device, "hidden"), at(device, "hidden_bias")
        out, out_bias = at(device, "out"), at(device, "out_bias")
        scaled = ((features - mean) / scale).clamp(-_MAX_DEVIATIONS, _MAX_DEVIATIONS)
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
    outputs: int,
) -> dict[str, Tensor]:
    """Trains a network with AdamW; `loss` takes its outputs for some rows and their numbers."""
    read = torch.from_numpy(np.asarray(features)).float()
    inputs = read.shape[1]
    mean, scale = read.mean(0), read.std(0, correction=0)
    scale = torch.where(scale > 1e-6, scale, torch.ones_like(scale))
    read = ((read - mean) / scale).clamp(-_MAX_DEVIATIONS, _MAX_DEVIATIONS)
    random, kind = torch.Generator().manual_seed(seed), torch.float32
    weights = [
        torch.randn(units, inputs, generator=random, dtype=kind) / inputs**0.5,
        torch.zeros(units, dtype=kind),
        torch.randn(outputs, units, generator=random, dtype=kind) / units**0.5,
        torch.zeros(outputs, dtype=kind),
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
