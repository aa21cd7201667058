"""The base of gates that are fitted to text and stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from typing_extensions import Self

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric
from knn_logits.search.neighbors import Neighbors


class FittedGate:
    """A gate that is fitted to text and stored in a datastore; it implements `Gate`."""

    kind: ClassVar[str]  # Its name in files and options
    metric: Metric  # The metric of the distances that it was fitted for

    def check(self, metric: Metric) -> None:
        """Refuses neighbors of another metric."""
        if metric != self.metric:
            raise ConfigError(
                f"this gate was fitted for the metric {self.metric}, not {metric}: fit another gate"
            )

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
