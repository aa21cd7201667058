"""Frozen, validated settings. Nothing here knows of models, files or FAISS."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from knn_logits.errors import ConfigError

Metric = Literal["l2", "ip", "cosine"]
METRICS: tuple[str, ...] = get_args(Metric)

# With fewer entries there is too little text to choose settings on.
FEWEST_CALIBRATED = 256
DEFAULT_K = 1024
DEFAULT_LMBDA = 0.25
DEFAULT_TEMPERATURE = 10.0

# FAISS keeps a seed in 32 bits, and some of its seeds are one more than the number given.
MOST_SEED = 2**31 - 2
MOST_THREADS = 1024
_LARGEST = 2**63 - 1


def check_metric(metric: str) -> Metric:
    """Returns `metric` if it is one of `METRICS`.

    Raises:
        ConfigError: for any other value.
    """
    for known in get_args(Metric):
        if metric == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"metric must be one of {', '.join(METRICS)}, not {metric!r}")


def whole_number(name: str, value: object, least: int, most: int = _LARGEST) -> int:
    """Converts a whole number of any type, such as one of NumPy, to Python's `int`.

    Raises:
        ConfigError: when the value is not a whole number, or is out of its range.
    """
    if not isinstance(value, bool) and isinstance(value, Integral):
        number = int(value)
        if least <= number <= most:
            return number
    limits = f"of at least {least}" if most == _LARGEST else f"from {least} to {most}"
    raise ConfigError(f"{name} must be a whole number {limits}, not {value!r}")


def check_names(what: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuses names that do not exist, and says which one is meant.

    Raises:
        ConfigError: when a name is not among those that are allowed.
    """
    allowed = sorted(allowed)
    for name in given:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, 1)
            hint = f"write {near[0]}" if near else "the names are " + ", ".join(allowed)
            raise ConfigError(f"there is no {what} {name!r}: {hint}")


def check_threads(threads: int | None) -> None:
    """Refuses more threads than a process can start, since it would end without any message.

    Args:
        threads: The number of threads; None, which leaves the choice to FAISS, is allowed.

    Raises:
        ConfigError: when the value is not a number of threads that can be started.
    """
    if threads is not None:
        whole_number("threads", threads, 1, MOST_THREADS)


def _real_number(name: str, value: object) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, Real):
            number = float(value)
            if math.isfinite(number):
                return number
    except OverflowError:  # a whole number too large for a float
        pass
    raise ConfigError(f"{name} must be a finite number, not {value!r}")


def share(name: str, value: object) -> float:
    """Converts a share of something to Python's `float`.

    Raises:
        ConfigError: when the value is not above 0 and at most 1.
    """
    found = _real_number(name, value)
    if not 0.0 < found <= 1.0:
        raise ConfigError(f"{name} must be above 0 and at most 1, not {value!r}")
    return found


def _truth(name: str, value: object) -> bool:
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # NumPy's
        return bool(value)
    raise ConfigError(f"{name} must be True or False, not {value!r}")


def _set(config: object, name: str, value: object) -> None:
    object.__setattr__(config, name, value)  # the dataclass is frozen, but still being made


def _ids(name: str, value: Any) -> tuple[str, ...]:
    """Returns the names of documents as a tuple. A single one may be given as a plain string."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(one, str) for one in given):
        raise ConfigError(f"{name} must be a list of the ids or titles of documents, not {value!r}")
    return tuple(given)


# Where settings come from that are not given: `knn_logits.mixture.presets` explains each.
Preset: TypeAlias = Literal["writing", "scoring", "paper"]
PRESETS: tuple[Preset, ...] = get_args(Preset)


@dataclass(frozen=True)
class KNNConfig:
    """How neighbors are looked up and how much their vote counts.

    Attributes:
        k: Number of neighbors for each query, at least 1. A datastore with fewer entries returns
            all of them.
        lmbda: Weight of p_kNN in the mixture, in [0, 1]. Khandelwal et al. (2020), equation 3.
        temperature: Divides distances (or similarities) before the softmax over the neighbors,
            above 0. Khandelwal et al. (2021), equation 2.
        refine: Recompute the distances of the neighbors found from the stored keys ("recompute
            distance" in the papers). It is off by default, because it reads k * dim values from
            disk for each query: 1.5 MB with k 1024 and dim 768 in half precision. That costs more
            than most searches. A scalar-quantised index hardly gains from it; a product-quantised
            index may.
        nprobe: Inverted lists visited for each query; None keeps the number of the index.

        retomaton: Follow pointers through the corpus, and search only when too few of them are
            left. Alon et al. (2022), section 3.
        min_knns: Search again when fewer pointers than this are left. With 1, a search is made
            when no pointer is left.
        max_knns: The most pointers and members of their clusters that may vote.
        pointer_weight: How many times as much an entry counts in the vote if a pointer led to it,
            above 0. With 1 it counts by its distance alone, as in the paper. LOG.md has what the
            default brings.
        pointer_distances: Where the vectors come from that pointers are compared by. "keys" takes
            the stored keys. "index" takes the vectors kept by the index: it needs no keys, and is
            as approximate as a search.
        suffix_weight: How many times as much an entry counts in the vote for each token before it
            that is also before the query, counted backwards up to 8 tokens; above 0. With 1 the
            text does not matter, as in the papers. LOG.md has what more brings.
        exclude: Ids, titles or uris of documents that are left out, as if they had never been
            added.
        infini_gram: Share of the ∞-gram in the mixture, in [0, 1], wherever the end of the text
            stands in the corpus; "auto" takes shares by the length of that end, those that were
            fitted to the datastore where there are any. None leaves the ∞-gram out. Liu et al.
            (2024), "Infini-gram".

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
    pointer_weight: float = 20.0
    pointer_distances: str = "keys"
    suffix_weight: float = 1.0
    exclude: tuple[str, ...] = ()
    infini_gram: float | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        for name in ("k", "min_knns", "max_knns"):
            _set(self, name, whole_number(name, getattr(self, name), 1))
        for name in ("retomaton", "refine"):
            _set(self, name, _truth(name, getattr(self, name)))
        if self.pointer_distances not in ("keys", "index"):
            raise ConfigError(
                f"pointer_distances must be 'keys' or 'index', not {self.pointer_distances!r}"
            )
        _set(self, "lmbda", _real_number("lmbda", self.lmbda))
        if not 0.0 <= self.lmbda <= 1.0:
            raise ConfigError(f"lmbda must lie between 0 and 1, not {self.lmbda!r}")
        _set(self, "temperature", _real_number("temperature", self.temperature))
        if self.temperature <= 0.0:
            raise ConfigError(f"temperature must be above 0, not {self.temperature!r}")
        for name in ("pointer_weight", "suffix_weight"):
            _set(self, name, _real_number(name, getattr(self, name)))
            if getattr(self, name) <= 0.0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)!r}")
        if self.nprobe is not None:
            _set(self, "nprobe", whole_number("nprobe", self.nprobe, 1))
        _set(self, "exclude", _ids("exclude", self.exclude))
        if self.infini_gram not in (None, "auto"):
            _set(self, "infini_gram", _real_number("infini_gram", self.infini_gram))
            if not 0.0 <= float(self.infini_gram) <= 1.0:
                raise ConfigError(
                    f"infini_gram must lie between 0 and 1, or be 'auto', not {self.infini_gram!r}"
                )

    def with_given(self, **given: Any) -> KNNConfig:
        """Returns a copy in which the given settings are replaced; None leaves a setting as it is.

        Raises:
            ConfigError: when a given value is out of its range.
        """
        return replace(self, **{name: value for name, value in given.items() if value is not None})


def suffix_words(weight: float) -> str:
    """What a line of settings adds to k, λ and temperature: nothing for a suffix weight of 1."""
    return "" if weight == 1.0 else f", suffix weight {weight:.4g}"


class SearchSettings(TypedDict, total=False):
    """Keyword arguments that say how neighbors are found. `KNNConfig` explains each of them.

    Attributes:
        refine: Recompute distances from the stored keys.
        nprobe: Inverted lists visited for each query.
        retomaton: Follow pointers, and search only when too few of them are left.
        min_knns: Search again when fewer pointers than this are left.
        max_knns: The most pointers and members of their clusters that may vote.
        pointer_weight: How many times as much an entry counts if a pointer led to it.
        pointer_distances: "keys" or "index".
        suffix_weight: How many times as much an entry counts for each shared token before it.
        exclude: Ids, titles or uris of documents that are left out.
        infini_gram: Share of the ∞-gram in the mixture, or "auto".
    """

    refine: bool
    nprobe: int | None
    retomaton: bool | None
    min_knns: int | None
    max_knns: int | None
    pointer_weight: float | None
    pointer_distances: str | None
    suffix_weight: float | None
    exclude: Sequence[str] | None
    infini_gram: float | Literal["auto"] | None


@dataclass(frozen=True)
class IndexConfig:
    """What kind of index is built over the keys.

    Attributes:
        factory: "exact" (torch, no approximation), "auto" (chosen by the number of entries), or
            a FAISS factory string such as "IVF1024,SQ8".
        metric: "l2" (squared Euclidean distance), "ip" (inner product) or "cosine"; None keeps a
            datastore's metric, "l2" for a new one.
        nprobe: Inverted lists visited for each query; None chooses the smallest number that
            reaches the wanted recall on a sample.
        train_size: The most keys that the index is trained on; None chooses by the kind of index.
        seed: Seed of every random choice made while building.
        budget: The most bytes that the index may take. "auto" then takes the kind that finds most
            within it, measured on a sample of the keys.
        target_recall: The share of the true neighbors that the index has to find, in (0, 1].
            "auto" then takes the smallest kind that finds so many.
        native: Use FAISS's own format for an index that cannot be stored as plain arrays. That
            format cannot be checked, so whoever opens the datastore has to ask for it as well.

    Raises:
        ConfigError: when a value is out of its range.
    """

    factory: str = "auto"
    metric: Metric | None = None
    nprobe: int | None = None
    train_size: int | None = None
    seed: int = 0
    native: bool = False
    budget: int | None = None
    target_recall: float | None = None

    def __post_init__(self) -> None:
        if self.metric is not None:
            check_metric(self.metric)
        if not isinstance(self.factory, str) or not self.factory.strip():
            raise ConfigError(
                "the index must be 'exact', 'auto' or a FAISS factory string such as 'IVF1024,SQ8'"
            )
        if self.nprobe is not None:
            _set(self, "nprobe", whole_number("nprobe", self.nprobe, 1))
        if self.train_size is not None:
            _set(self, "train_size", whole_number("train_size", self.train_size, 1))
        _set(self, "seed", whole_number("seed", self.seed, 0, MOST_SEED))
        if self.budget is not None:
            _set(self, "budget", whole_number("budget", self.budget, 1))
        if self.target_recall is not None:
            _set(self, "target_recall", share("target_recall", self.target_recall))
        if self.measures and self.factory != "auto":
            raise ConfigError(
                f"a budget or a target recall chooses the kind of index, and {self.factory!r} names"
                " one: leave out --index, or --budget and --target-recall"
            )

    @property
    def measures(self) -> bool:
        """Whether the kind of index is chosen by measuring several."""
        return self.budget is not None or self.target_recall is not None


def index_config(given: IndexConfig | str | None) -> IndexConfig:
    """Returns the given index's settings; a string is a factory, and None takes the defaults.

    Raises:
        ConfigError: when it is something else.
    """
    if given is None or isinstance(given, str):
        return IndexConfig() if given is None else IndexConfig(given)
    if not isinstance(given, IndexConfig):
        raise ConfigError(
            f"index must be an IndexConfig such as IndexConfig('exact'), not {given!r}"
        )
    return given


@dataclass(frozen=True)
class WindowConfig:
    """How a document longer than the model's context is cut.

    Every token is predicted once, with at least `window - stride` tokens before it where the
    document has them (the sliding window of the published perplexities).

    Attributes:
        window: Number of tokens that the model sees at once. None takes the model's context
            length, but at most 1024.
        stride: Number of tokens by which the window moves on. None takes half the window.

    Raises:
        ConfigError: when a value is out of its range.
    """

    window: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None:
            _set(self, "window", whole_number("window", self.window, 2))
        if self.stride is not None:
            _set(self, "stride", whole_number("stride", self.stride, 1))
        if self.window is not None and self.stride is not None and self.stride > self.window:
            raise ConfigError(
                f"stride {self.stride} is larger than window {self.window}: "
                "tokens between two windows would be left out; give a stride of at most the window"
            )
