"""Frozen, validated settings. Nothing here knows of models, files or FAISS."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, get_args

from knn_logits.errors import ConfigError

Metric = Literal["l2", "ip", "cosine"]
METRICS: tuple[str, ...] = get_args(Metric)

DEFAULT_K = 1024
DEFAULT_LMBDA = 0.25
DEFAULT_TEMPERATURE = 10.0


def check_metric(metric: str) -> Metric:
    """Returns `metric` if it is one of `METRICS`.

    Raises:
        ConfigError: for any other value.
    """
    for known in get_args(Metric):
        if metric == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"metric must be one of {', '.join(METRICS)}, not {metric!r}")


def _whole_number(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _real_number(name: str, value: object) -> float:
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number = float(value)
            if math.isfinite(number):
                return number
    except OverflowError:  # a whole number too large for a float
        pass
    raise ConfigError(f"{name} must be a finite number, not {value!r}")


@dataclass(frozen=True)
class KNNConfig:
    """How neighbors are looked up and how much their vote counts.

    Attributes:
        k: Neighbors a query asks for, at least 1. A store with fewer entries gives all it has.
        lmbda: Weight of p_kNN in the mixture, in [0, 1]. Khandelwal et al. (2020), equation 3.
        temperature: Divides distances (or similarities) before the softmax over the neighbors,
            above 0. Khandelwal et al. (2021), equation 2.
        refine: Recompute the distances of the neighbors found from the stored keys ("recompute
            distance" in the papers). Off by default: it reads k * dim values a query from disk,
            for k 1024 and dim 768 in half precision 1.5 MB, which costs more than most searches;
            a scalar-quantised index hardly gains from it, a product-quantised one may.
        nprobe: Inverted lists visited a query; None keeps what the index was built with.

        retomaton: Follow pointers through the corpus, and search only when too few are left.
        min_knns: Search when fewer pointers than this are left; 1 searches when none is.
        max_knns: Pointers and members of their clusters that vote, at most.
        pointer_distances: Compare pointers by the stored "keys", or by the vectors that the
            "index" keeps of them, which needs no keys and is as approximate as a search.

    Raises:
        ConfigError: when a value is out of its range.
    """

    k: int = DEFAULT_K
    lmbda: float = DEFAULT_LMBDA
    temperature: float = DEFAULT_TEMPERATURE
    refine: bool = False
    nprobe: int | None = None
    retomaton: bool = False
    min_knns: int = 1
    max_knns: int = 1024
    pointer_distances: str = "keys"

    def __post_init__(self) -> None:
        _whole_number("k", self.k, 1)
        _whole_number("min_knns", self.min_knns, 1)
        _whole_number("max_knns", self.max_knns, 1)
        if not isinstance(self.retomaton, bool):
            raise ConfigError(f"retomaton must be True or False, not {self.retomaton!r}")
        if self.pointer_distances not in ("keys", "index"):
            raise ConfigError(
                f"pointer_distances must be 'keys' or 'index', not {self.pointer_distances!r}"
            )
        object.__setattr__(self, "lmbda", _real_number("lmbda", self.lmbda))
        if not 0.0 <= self.lmbda <= 1.0:
            raise ConfigError(f"lmbda must lie between 0 and 1, not {self.lmbda!r}")
        object.__setattr__(self, "temperature", _real_number("temperature", self.temperature))
        if self.temperature <= 0.0:
            raise ConfigError(f"temperature must be above 0, not {self.temperature!r}")
        if not isinstance(self.refine, bool):
            raise ConfigError(f"refine must be True or False, not {self.refine!r}")
        if self.nprobe is not None:
            _whole_number("nprobe", self.nprobe, 1)

    def with_given(self, **given: Any) -> KNNConfig:
        """These settings with those that are given; None leaves one as it is.

        Raises:
            ConfigError: when a given value is out of its range.
        """
        return replace(self, **{name: value for name, value in given.items() if value is not None})


class SearchSettings(TypedDict, total=False):
    """How neighbors are found, for those who give it by name; see `KNNConfig` for the meaning.

    Attributes:
        refine: Recompute distances from the stored keys.
        nprobe: Inverted lists visited a query.
        retomaton: Follow pointers, and search only when too few are left.
        min_knns: Search when fewer pointers than this are left.
        max_knns: Pointers and members of their clusters that vote, at most.
        pointer_distances: "keys" or "index".
    """

    refine: bool
    nprobe: int | None
    retomaton: bool | None
    min_knns: int | None
    max_knns: int | None
    pointer_distances: str | None


@dataclass(frozen=True)
class IndexConfig:
    """What kind of index is built over the keys.

    Attributes:
        factory: "exact" (torch, no approximation), "auto" (chosen by the number of entries), or
            a FAISS factory string such as "IVF1024,SQ8".
        metric: "l2" (squared Euclidean distance), "ip" (inner product) or "cosine"; None keeps a
            datastore's metric, "l2" for a new one.
        nprobe: Inverted lists visited a query; None chooses the smallest that reaches the
            recall wanted on a sample.
        train_size: Keys that the index is trained on, at most; None chooses by the index.
        seed: Seed of every random choice made while building.
        native: Keep an index that has no plain form in FAISS's own format. Whoever opens the
            datastore has to ask for it as well, since that format cannot be checked.

    Raises:
        ConfigError: when a value is out of its range.
    """

    factory: str = "auto"
    metric: Metric | None = None
    nprobe: int | None = None
    train_size: int | None = None
    seed: int = 0
    native: bool = False

    def __post_init__(self) -> None:
        if self.metric is not None:
            check_metric(self.metric)
        if not isinstance(self.factory, str) or not self.factory.strip():
            raise ConfigError("the index must be 'exact', 'auto' or a FAISS factory string")
        if self.nprobe is not None:
            _whole_number("nprobe", self.nprobe, 1)
        if self.train_size is not None:
            _whole_number("train_size", self.train_size, 1)
        _whole_number("seed", self.seed, 0)


@dataclass(frozen=True)
class WindowConfig:
    """How a document longer than the model's context is cut.

    Every token is predicted once, with at least `window - stride` tokens before it where the
    document has them (the sliding window of the published perplexities).

    Attributes:
        window: Tokens the model sees at once; None takes the model's context length, 1024 at most.
        stride: Tokens by which the window moves on; None takes half the window.

    Raises:
        ConfigError: when a value is out of its range.
    """

    window: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None:
            _whole_number("window", self.window, 2)
        if self.stride is not None:
            _whole_number("stride", self.stride, 1)
        if self.window is not None and self.stride is not None and self.stride > self.window:
            raise ConfigError(
                f"stride {self.stride} is larger than window {self.window}: "
                "tokens between two windows would be left out"
            )
