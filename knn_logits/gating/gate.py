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


@runtime_checkable
class Gate(Protocol):
    """Decides how much the neighbors' vote counts, row by row.

    Whatever has this method can be given as `lmbda`. A gate that was fitted for one metric says so
    in an attribute `metric`, and is refused where another one is in use.
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
    own = getattr(lmbda, "metric", metric)
    if own != metric:
        raise ConfigError(
            f"the gate was fitted for the metric {own}, the datastore has {metric}: fit a gate on "
            "this datastore, or give a number as lmbda"
        )
    return None, lmbda


def lmbda_of_rows(gate: Gate, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor) -> Tensor:
    """A gate's λ, checked, and 0 for every row without neighbors.

    Args:
        gate: Any gate.
        neighbors: Of `rows` queries.
        metric: Of their distances.
        log_p_lm: [rows, vocabulary].

    Returns:
        [rows], in [0, 1], in the type and on the device of `log_p_lm`.

    Raises:
        ConfigError: when the gate answers with anything else.
    """
    share = gate.lmbda(neighbors, metric, log_p_lm)
    if not isinstance(share, Tensor) or share.shape != (neighbors.rows,):
        what = tuple(share.shape) if isinstance(share, Tensor) else type(share).__name__
        raise ConfigError(
            f"{type(gate).__name__}.lmbda must return a tensor of shape ({neighbors.rows},), one "
            f"number a row, not {what}"
        )
    share = share.to(log_p_lm)
    if not bool(((share >= 0.0) & (share <= 1.0)).all()):
        raise ConfigError(
            f"{type(gate).__name__}.lmbda must return numbers between 0 and 1: end it with a "
            "sigmoid or a clamp"
        )
    return share if neighbors.every_row else share.masked_fill(~neighbors.mask.any(-1), 0.0)


def nearest_distance(neighbors: Neighbors, metric: Metric) -> Tensor:
    """Of each row's nearest neighbor.

    Returns:
        [rows]: the smallest squared distance ("l2") or the largest similarity ("ip", "cosine");
        infinitely far where a row has no neighbor.
    """
    distances = neighbors.distances
    if distances.shape[-1] == 0:
        far = torch.inf if metric == "l2" else -torch.inf
        return distances.new_full((neighbors.rows,), far)
    return distances.amin(-1) if metric == "l2" else distances.amax(-1)
