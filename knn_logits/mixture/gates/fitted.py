"""The base of gates that are fitted to text and stored, and what their fits share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import Self

from knn_logits.arrays import Array, Bools, Floats, Ints
from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric
from knn_logits.mixture.weights import Weighing
from knn_logits.progress import Progress, no_progress
from knn_logits.search.neighbors import Neighbors


@dataclass(frozen=True)
class GateTokens:
    """Tokens of a text to fit a gate to, under the best setting."""

    features: npt.NDArray[np.float32]  # float32 [tokens, features], what the gate's `features` gave
    nearest: Floats  # [tokens], the distance of the nearest neighbor; inf without neighbors
    skip: npt.NDArray[np.float32] | None  # `skip_features`; None for a gate without skips
    lm: Floats  # [tokens], log p_LM
    knn: Floats  # [tokens], log p_kNN of the best k
    by_k: Floats  # [tokens, ks], log p_kNN of each k
    documents: Ints  # int64 [tokens], the document of each
    ks: tuple[int, ...]  # The values of k
    temperature: float  # The best temperature
    lmbda: float  # The best λ
    sample: Any = None  # The gate's own sample of these tokens, if it keeps one

    def __getitem__(self, rows: Bools | Ints) -> GateTokens:
        names = ("features", "nearest", "skip", "lm", "knn", "by_k", "documents", "sample")
        values = {name: getattr(self, name) for name in names}
        chosen = {name: value[rows] for name, value in values.items() if value is not None}
        return replace(self, **chosen)

    @property
    def with_distance(self) -> Array:
        """The features with a first column that is not finite for a token without neighbors."""
        features: Array = self.features.copy()
        features[:, 0] = self.nearest
        return features

    def mixed(self, share: Tensor) -> Floats:
        """log p of each token under λ."""
        weight = np.where(np.isfinite(self.nearest), share.double().numpy(), 0.0)
        with np.errstate(divide="ignore"):
            mixed: Floats = np.logaddexp(np.log1p(-weight) + self.lm, np.log(weight) + self.knn)
        return mixed


class FittedGate:
    """A gate that `tune` fits and a datastore stores; it implements `Gate`."""

    kind: ClassVar[str]  # Its name in files and options
    reads_all: ClassVar[bool] = False  # reads all neighbors, of the largest k that is tried
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

    @classmethod
    def sample(cls, ks: Sequence[int], metric: Metric, weighing: Weighing, seed: int) -> Any:
        """A sampler of tokens with more than their features, if the gate needs one."""
        return None

    @classmethod
    def features(
        cls, neighbors: Neighbors, metric: Metric, log_p_lm: Tensor, ks: Sequence[int]
    ) -> Tensor:
        """The features kept of each token; the first is the nearest neighbor's distance."""
        raise NotImplementedError

    @classmethod
    def fit(
        cls, tokens: GateTokens, metric: Metric, seed: int, progress: Progress = no_progress
    ) -> Self:
        """Fits the gate that makes tokens likely."""
        raise NotImplementedError

    def log_p(self, tokens: GateTokens, progress: Progress = no_progress) -> Floats:
        """Computes log p of tokens under the gate, float64 [tokens]."""
        return tokens.mixed(self.at(torch.from_numpy(tokens.features)))

    def at(self, features: Tensor) -> Tensor:
        """λ, or what else the gate computes, of `features`."""
        raise NotImplementedError

    def to_arrays(self) -> dict[str, Array]:
        """The gate as arrays, float32."""
        raise NotImplementedError

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metric: Metric) -> Self:
        """Makes the gate from its arrays; KeyError, ValueError, ConfigError if they form none."""
        raise NotImplementedError


_ROUNDS = 1000
_CLOSE = 1e-6


def coefficients(
    left: Array, part: Array, lm: Array, knn: Array, number: int, centre: float, smoothing: float
) -> Array:
    """λ at each middle by EM; a token lies `part` of the way from its left middle to the next."""
    right = np.minimum(left + 1, number - 1)
    lmbdas = np.full(number, centre)
    places = np.concatenate([left, right])
    for _ in range(_ROUNDS):
        mixed = (1.0 - part) * lmbdas[left] + part * lmbdas[right]
        p = mixed * knn + (1.0 - mixed) * lm
        # The responsibility of each token's two middles: of the neighbors' part, and in total.
        by_knn = np.concatenate([(1.0 - part) * lmbdas[left], part * lmbdas[right]])
        by_knn *= np.tile(knn / p, 2)
        by_lm = np.concatenate([(1.0 - part) * (1.0 - lmbdas[left]), part * (1.0 - lmbdas[right])])
        by_lm *= np.tile(lm / p, 2)
        voted = np.bincount(places, by_knn, number) + smoothing * centre
        whole = np.bincount(places, by_knn + by_lm, number) + smoothing
        before, lmbdas = lmbdas, voted / whole
        if np.abs(lmbdas - before).max() < _CLOSE:
            break
    return lmbdas


def best_lmbda(log_p_lm: Array, log_p_knn: Array) -> float:
    """The λ that makes a text likeliest, by EM; `log_p_knn` is -inf where no neighbor votes."""
    _, lm, knn = usable_tokens([np.zeros(len(log_p_lm))], log_p_lm, log_p_knn)
    peak = np.maximum(lm, knn)
    nothing = np.zeros(len(lm))
    shares = coefficients(
        nothing.astype(np.int64), nothing, np.exp(lm - peak), np.exp(knn - peak), 1, 0.5, 1.0
    )
    return float(np.clip(shares[0], 0.0, 1.0))


def usable_tokens(
    features: list[Array], log_p_lm: Array, log_p_knn: Array
) -> tuple[list[Array], Array, Array]:
    """Drops tokens that no gate can change: no finite first feature, or no probability."""
    columns = [np.asarray(column, dtype=np.float64) for column in (*features, log_p_lm, log_p_knn)]
    if any(column.ndim != 1 or len(column) != len(columns[0]) for column in columns):
        raise ConfigError("the arrays to fit a gate on need one value per token")
    if any(np.isnan(column).any() for column in columns):
        raise ConfigError("the arrays to fit a gate on contain NaN: recompute them")
    usable = np.isfinite(columns[0]) & (np.maximum(columns[-2], columns[-1]) > -np.inf)
    if not usable.any():
        raise ConfigError(
            "no token has a neighbor: fit the gate on text similar to the datastore's"
        )
    *read, lm, knn = (column[usable] for column in columns)
    return read, lm, knn
