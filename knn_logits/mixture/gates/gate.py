"""`Gate`: λ for each row in place of one number; the base of fitted gates; checks of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor
from typing_extensions import Self

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric
from knn_logits.search.neighbors import Neighbors

# λ stays below 1, since with λ 1 a token without a vote would be impossible. A sigmoid in float32
# can reach 1.
MOST_BY_NETWORK = 0.999


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
            [rows], in [0, 1].
        """
        ...


class FittedGate:
    """A gate that is fitted to text and stored in a datastore; it implements `Gate`."""

    kind: ClassVar[str]  # Its name in files and options
    metric: Metric  # The metric of the distances that it was fitted for

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
        """See `Gate.lmbda`."""
        raise NotImplementedError

    def to_arrays(self) -> dict[str, Array]:
        """The gate as arrays, float32."""
        raise NotImplementedError

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> Self:
        """Makes the gate from its arrays; KeyError, ValueError, ConfigError if they form none."""
        raise NotImplementedError


def gate_name(gate: Gate) -> str:
    """A gate's name in results: "adaptive", "meta-k"."""
    return str(getattr(gate, "kind", type(gate).__name__))


def split_lmbda(lmbda: float | Gate | None, metric: Metric) -> tuple[float | None, Gate | None]:
    """Tells whether a number or a gate was given as λ."""
    if lmbda is None or not isinstance(lmbda, Gate):
        if callable(lmbda):
            raise ConfigError(
                f"lmbda must be a number or a gate, not a {type(lmbda).__name__}: a gate is an "
                "object with a method lmbda(neighbors, metric, log_p_lm), see knn_logits.Gate"
            )
        return lmbda, None
    fitted_for = getattr(lmbda, "metric", None)
    if fitted_for is not None and fitted_for != metric:
        raise ConfigError(
            f"the gate was fitted for the metric {fitted_for}, but the datastore has {metric}: "
            "fit a gate on this datastore, or set lmbda to a number"
        )
    return None, lmbda


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
