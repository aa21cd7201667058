"""`Gate`: λ for each row in place of one number; checks of results; gates that are fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear
from typing_extensions import Self

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.locks import Copies
from knn_logits.metrics import Metric
from knn_logits.search.neighbors import Neighbors

# λ stays below 1, since with λ 1 a token without a vote would be impossible. A sigmoid in float32
# can reach 1.
MOST_BY_NETWORK = 0.999
_ARRAYS = ("mean", "scale", "hidden", "hidden_bias", "out", "out_bias")
# Features are clipped at this many standard deviations from the mean.
_MAX_DEVIATIONS = 4.0
_RATE = 0.02


@runtime_checkable
class Gate(Protocol):
    """Decides how much the neighbors' vote counts, row by row.

    Any object with this method can be given as `lmbda`. A gate that was fitted for a metric has an
    attribute `metric`, and is refused with another metric.

    A gate may also have a method `weigh(neighbors, log_weights, metric, log_p_lm)`, which is then
    called instead of `lmbda`. It also chooses the weight of each neighbor. It takes log w_i
    [rows, k], and returns λ [rows] and log w_i [rows, k]. The weights of a row with neighbors must
    sum to 1.
    """

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
        """Returns λ of each row.

        Args:
            neighbors: The neighbors of each row's query, in no particular order. A row may have
                no neighbor.
            metric: The metric of the neighbors' distances.
            log_p_lm: The model's normalised log-probabilities after all earlier processors,
                float32 [rows, vocabulary], on the device of the neighbors.

        Returns:
            [rows], in [0, 1]. At 1, a token without a vote is impossible.
        """
        ...


class FittedGate:
    """A gate that is fitted to text and stored in a datastore; it implements `Gate`."""

    kind: ClassVar[str]  # Its name in files and options
    metric: Metric  # The metric of the distances that it was fitted for
    _network: Network

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
        """See `Gate.lmbda`."""
        raise NotImplementedError

    @property
    def about(self) -> dict[str, str]:
        return {"gate": self.kind, "metric": self.metric}

    def to_arrays(self) -> dict[str, Array]:
        """The gate as arrays, float32."""
        return self._network.to_arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> Self:
        """Makes the gate from its arrays; KeyError, ValueError, ConfigError if they form none."""
        raise NotImplementedError


def gate_name(gate: Gate) -> str:
    """A gate's name in results: "adaptive", "meta-k"."""
    return str(getattr(gate, "kind", type(gate).__name__))


def weigh_rows(
    gate: Gate, neighbors: Neighbors, log_weights: Tensor, metric: Metric, log_p_lm: Tensor
) -> tuple[Tensor, Tensor]:
    """λ [rows] of a gate, 0 for a row without neighbors, and log w_i [rows, k], checked."""
    weigh = getattr(gate, "weigh", None)
    if weigh is not None:
        share, weights = weigh(neighbors, log_weights, metric, log_p_lm)
    else:
        share, weights = gate.lmbda(neighbors, metric, log_p_lm), log_weights
    for name, given, shape in (
        ("λ", share, (neighbors.rows,)),
        ("weights", weights, tuple(log_weights.shape)),
    ):
        if not isinstance(given, Tensor) or given.shape != shape:
            kind = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise ConfigError(
                f"{type(gate).__name__} must return {name} of shape {shape}, not {kind}"
            )
    share = share.to(log_p_lm)
    if not bool(((share >= 0.0) & (share <= 1.0)).all()):
        raise ConfigError(
            f"{type(gate).__name__} must return λ between 0 and 1: end it with a sigmoid or a clamp"
        )
    return share.masked_fill(~neighbors.mask.any(-1), 0.0), weights


class Network:
    """out · tanh(hidden · (features - mean) / scale + hidden_bias) + out_bias, from its arrays."""

    def __init__(self, owner: str, inputs: int, arrays: Mapping[str, Any], outputs: int) -> None:
        self._weights = {
            name: torch.from_numpy(np.array(arrays[name], np.float32)) for name in _ARRAYS
        }
        units = self._weights["hidden_bias"].numel()
        ins, outs = (inputs,), (outputs,)
        shapes = (ins, ins, (units, inputs), (units,), (outputs, units), outs)
        for name, shape in zip(_ARRAYS, shapes, strict=True):
            if tuple(self._weights[name].shape) != shape:
                raise ConfigError(f"{name} of a {owner} must have the shape {shape}")
        if not units or not bool((self._weights["scale"] > 0.0).all()):
            raise ConfigError(f"a {owner} must have units, and scales above 0")
        self._copies = Copies(*self._weights.values())

    def __call__(self, features: Tensor) -> Tensor:
        """float32 [n, outputs] of features, float32 [n, features]."""
        mean, scale, hidden, hidden_bias, out, out_bias = self._copies.at(features.device)
        scaled = ((features - mean) / scale).clamp(-_MAX_DEVIATIONS, _MAX_DEVIATIONS)
        return linear(torch.tanh(linear(scaled, hidden, hidden_bias)), out, out_bias)

    def to_arrays(self) -> dict[str, Array]:
        return {name: weight.cpu().numpy() for name, weight in self._weights.items()}


def trained(
    features: Array,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    units: int,
    steps: int,
    batch: int,
    decay: float,
    seed: int,
    outputs: int,
    networks: int = 1,
) -> dict[str, Array]:
    """Trains networks with AdamW, and returns the one whose outputs are their mean.

    `loss` takes outputs, [networks, batch, outputs], and the numbers of the rows.
    """
    read = torch.from_numpy(np.asarray(features)).float()
    inputs = read.shape[1]
    mean, scale = read.mean(0), read.std(0, correction=0)
    scale = torch.where(scale > 1e-6, scale, torch.ones_like(scale))
    read = ((read - mean) / scale).clamp(-_MAX_DEVIATIONS, _MAX_DEVIATIONS)
    random, kind = torch.Generator().manual_seed(seed), torch.float32
    weights = [
        torch.randn(networks, inputs, units, generator=random, dtype=kind) / inputs**0.5,
        torch.zeros(networks, 1, units, dtype=kind),
        torch.randn(networks, units, outputs, generator=random, dtype=kind) / units**0.5,
        torch.zeros(networks, 1, outputs, dtype=kind),
    ]
    for weight in weights:
        weight.requires_grad_()
    hidden, hidden_bias, out, out_bias = weights
    optimizer = torch.optim.AdamW(weights, lr=_RATE, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.enable_grad():
        for _ in range(steps):
            rows = torch.randint(len(read), (min(len(read), batch),), generator=random)
            logits = torch.tanh(read[rows] @ hidden + hidden_bias) @ out + out_bias
            optimizer.zero_grad()
            loss(logits, rows).backward()
            optimizer.step()
            schedule.step()
    # As one network, which has the units of all.
    joined = [
        hidden.mT.flatten(0, 1),
        hidden_bias.flatten(),
        out.flatten(0, 1).T / networks,
        out_bias.mean(0)[0],
    ]
    return {
        name: array.detach().numpy()
        for name, array in zip(_ARRAYS, [mean, scale, *joined], strict=True)
    }
