"""`Gate`: a λ for each row in place of one number, and what every gate shares.

Knows neighbors and probabilities; nothing of models, of indexes, or of how a gate was fitted.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from knn_logits.config import Metric
from knn_logits.errors import ConfigError
from knn_logits.neighbors import Neighbors

# A model without any say leaves a token without a vote impossible; in float32 a sigmoid reaches 1.
MOST_BY_NETWORK = 0.999


@runtime_checkable
class Gate(Protocol):
    """Decides how much the neighbors' vote counts, row by row.

    Whatever has this method can be given as `lmbda`. A gate that was fitted for one metric says so
    in an attribute `metric`, and is refused where another one is in use.

    A gate may also have a method `searches(log_p_lm)`, of the model's log-probabilities as above,
    that returns bool [rows]: False where no neighbors are to be looked for. Such a row has λ 0.
    He et al. (2021), "Efficient Nearest Neighbor Language Models", section 4.1.

    And it may have a method `weigh(neighbors, log_weights, metric, log_p_lm)` that is asked in
    place of `lmbda`, and decides on the weight of each neighbor as well: given log w_i [rows, k],
    it returns λ [rows] and log w_i [rows, k], the weights of a row with neighbors summing to 1.
    """

    def lmbda(self, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
        """λ of each row.

        Args:
            neighbors: Of each row's query, in no promised order; a row may have none.
            metric: What their distances are.
            log_p_lm: The model's normalised log-probabilities as other processors left them,
                float32 [rows, vocabulary], on the device of the neighbors.

        Returns:
            [rows], in [0, 1].
        """
        ...


def gate_name(gate: Gate) -> str:
    """What a gate is called in results: "learned", "distance", "learned, skips by confidence"."""
    return str(getattr(gate, "kind", type(gate).__name__))


def split_lmbda(lmbda: float | Gate | None, metric: Metric) -> tuple[float | None, Gate | None]:
    """What was given as λ: a number or a gate.

    Args:
        lmbda: A number, a gate, or None for neither.
        metric: The metric of the datastore's distances.

    Returns:
        The number and the gate; at most one of them is not None.

    Raises:
        ConfigError: when the gate was fitted for another metric.
    """
    if lmbda is None or not isinstance(lmbda, Gate):
        return lmbda, None
    own = getattr(lmbda, "metric", None)
    if own is not None and own != metric:
        raise ConfigError(
            f"the gate was fitted for the metric {own}, the datastore has {metric}: fit a gate on "
            "this datastore, or give a number as lmbda"
        )
    return None, lmbda


def rows_to_search(gate: Gate | None, log_p_lm: Tensor) -> Tensor | None:
    """The rows for which a gate wants neighbors.

    Args:
        gate: Any gate, or none.
        log_p_lm: [rows, vocabulary].

    Returns:
        bool [rows], on the CPU; None where there is no gate that leaves rows out.

    Raises:
        ConfigError: when the gate answers with anything else.
    """
    searches = getattr(gate, "searches", None)
    if searches is None:
        return None
    found = searches(log_p_lm)
    rows = len(log_p_lm)
    if not isinstance(found, Tensor) or found.shape != (rows,) or found.dtype != torch.bool:
        what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found)
        raise ConfigError(
            f"{type(gate).__name__}.searches must return a bool tensor of shape ({rows},), one "
            f"answer a row, not {what}"
        )
    return found.cpu()


def lmbda_of_rows(gate: Gate, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
    """A gate's λ, checked, and 0 for every row without neighbors.

    Args:
        gate: Any gate.
        neighbors: The neighbors of `rows` queries.
        metric: Metric of their distances.
        log_p_lm: [rows, vocabulary].

    Returns:
        [rows], in [0, 1], in the type and on the device of `log_p_lm`.

    Raises:
        ConfigError: when the gate answers with anything else.
    """
    share = gate.lmbda(neighbors, metric, log_p_lm)
    return _checked(share, f"{type(gate).__name__}.lmbda", neighbors, log_p_lm)


def _checked(share: object, source: str, neighbors: Neighbors, log_p_lm: Tensor) -> Tensor:
    """λ as a gate gave it, 0 for rows without neighbors."""
    if not isinstance(share, Tensor) or share.shape != (neighbors.rows,):
        what = tuple(share.shape) if isinstance(share, Tensor) else type(share).__name__
        raise ConfigError(
            f"{source} must return a tensor of shape ({neighbors.rows},), one number a row, not "
            f"{what}"
        )
    share = share.to(log_p_lm)
    if not bool(((share >= 0.0) & (share <= 1.0)).all()):
        raise ConfigError(
            f"{source} must return numbers between 0 and 1: end it with a sigmoid or a clamp"
        )
    return share if neighbors.every_row else share.masked_fill(~neighbors.mask.any(-1), 0.0)


def weigh_rows(
    gate: Gate, neighbors: Neighbors, log_weights: Tensor, metric: Metric, log_p_lm: Tensor
) -> tuple[Tensor, Tensor]:
    """A gate's λ, and the weights of the neighbors as it wants them, checked.

    Args:
        gate: Any gate.
        neighbors: The neighbors of `rows` queries.
        log_weights: log w_i, [rows, k].
        metric: Metric of their distances.
        log_p_lm: [rows, vocabulary].

    Returns:
        λ [rows] as from `lmbda_of_rows`, and log w_i [rows, k].

    Raises:
        ConfigError: when the gate answers with anything else.
    """
    weigh = getattr(gate, "weigh", None)
    if weigh is None:
        return lmbda_of_rows(gate, neighbors, metric, log_p_lm), log_weights
    share, weights = weigh(neighbors, log_weights, metric, log_p_lm)
    if not isinstance(weights, Tensor) or weights.shape != log_weights.shape:
        what = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ConfigError(
            f"{type(gate).__name__}.weigh must return weights of shape "
            f"{tuple(log_weights.shape)}, not {what}"
        )
    return _checked(share, f"{type(gate).__name__}.weigh", neighbors, log_p_lm), weights
