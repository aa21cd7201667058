"""The settings of a memory, an index and a pass over text, each declared once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from knn_logits.errors import ConfigError
from knn_logits.metrics import Metric
from knn_logits.settings.declaration import Place, check_fields, documented, setting, settings_of
from knn_logits.settings.declaration import check_names as check_names
from knn_logits.settings.declaration import whole_number as whole_number

# Where settings come from that are not given: `knn_logits.mixture.presets` explains each.
Preset: TypeAlias = Literal["default", "paper"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

# With fewer entries there is too little text to choose settings on.
FEWEST_CALIBRATED = 256
DEFAULT_K = 1024
DEFAULT_LMBDA = 0.25
DEFAULT_TEMPERATURE = 10.0

# FAISS keeps a seed in 32 bits, and some of its seeds are one more than the number given.
MOST_SEED = 2**31 - 2
MOST_THREADS = 1024

_EVERYWHERE: tuple[Place, ...] = ("build", "serve", "request", "page")


@documented
@dataclass(frozen=True)
class KNNConfig:
    """How neighbors are looked up and how much their vote counts."""

    k: int = setting(
        DEFAULT_K,
        "Number of neighbors per query.",
        details="A datastore with fewer entries returns all of them.",
        least=1,
        limit=4096,
        symbol="k",
        set_by=_EVERYWHERE,
        stored=True,
        reported=True,
    )
    lmbda: float = setting(
        DEFAULT_LMBDA,
        "Weight of the neighbors in the mixture.",
        details="Khandelwal et al. (2020), equation 3.",
        least=0,
        most=1,
        symbol="λ",
        set_by=_EVERYWHERE,
        stored=True,
        reported=True,
    )
    temperature: float = setting(
        DEFAULT_TEMPERATURE,
        "Temperature of the softmax over the neighbors.",
        details="It divides distances (or similarities). Khandelwal et al. (2021), equation 2.",
        above=0,
        limit=1e6,
        symbol="τ",
        set_by=_EVERYWHERE,
        stored=True,
        reported=True,
    )
    refine: bool = setting(
        False,
        "Recompute distances from the stored keys.",
        details=(
            'The papers call it "recompute distance". It reads k * dim values from disk for each '
            "query, 1.5 MB with k 1024 and dim 768 in half precision, which costs more than most "
            "searches. A product-quantised index may gain from it."
        ),
        set_by=("tune",),
    )
    nprobe: int | None = setting(
        None,
        "Number of inverted lists searched per query.",
        details="None keeps the number of the index.",
        least=1,
        set_by=("tune",),
    )
    retomaton: bool = setting(
        False,
        "RetoMaton: follow pointers through the corpus, and search only when too few remain.",
        details="Alon et al. (2022), section 3.",
        option="--retomaton/--no-retomaton",
        reported=True,
    )
    min_knns: int = setting(1, "Search when fewer pointers than this remain.", least=1)
    max_knns: int = setting(1024, "Maximum number of pointers and cluster members.", least=1)
    pointer_weight: float = setting(
        20.0,
        "Boost for entries reached by a pointer (1 in the paper).",
        details="docs/research/retomaton.md has what the default brings.",
        above=0,
    )
    suffix_weight: float = setting(
        1.0,
        "Boost per token of left context shared with the query, up to 8 tokens; 1 turns it off.",
        details="docs/research/settings.md has what more brings.",
        above=0,
        limit=1e8,
        set_by=("build", "tune", "serve", "request"),
        stored=True,
        reported=True,
    )
    exclude: tuple[str, ...] = setting(
        (),
        "Exclude the document with this id, title or URI; repeatable.",
        option="--without",
        metavar="DOCUMENT",
        limit=1024,
        set_by=("request",),
    )
    infini_gram: float | Literal["auto"] | None = setting(
        None,
        "Weight of the ∞-gram, which predicts the continuation of the longest verbatim match in "
        "the corpus; auto sets it by match length.",
        details=(
            '"auto" takes shares by the length of that end, those that were fitted to the '
            "datastore where there are any. None leaves the ∞-gram out. Liu et al. (2024), "
            '"Infini-gram".'
        ),
        least=0,
        most=1,
        metavar="SHARE|auto",
        reported=True,
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def of(cls, record: Any) -> KNNConfig:
        """Makes the settings that a record of a manifest keeps; the others have their defaults."""
        names = settings_of(cls)
        return cls(**{name: getattr(record, name) for name in names if hasattr(record, name)})

    def stored_values(self) -> dict[str, Any]:
        """The values that a manifest keeps: `SettingsRecord(**config.stored_values())`."""
        declared = settings_of(type(self))
        return {name: getattr(self, name) for name in declared if declared[name].stored}

    def with_given(self, **settings: Any) -> KNNConfig:
        """Returns a copy in which the given settings are replaced; None leaves a setting as it is.

        Raises:
            ConfigError: when a given value is out of its range.
        """
        changes = {name: value for name, value in settings.items() if value is not None}
        return replace(self, **changes)


@documented
@dataclass(frozen=True)
class MixtureConfig:
    """The settings of a memory beside `KNNConfig`."""

    preset: Preset | None = setting(
        None,
        "Where the other settings come from: the datastore, with its gate, or the papers' kNN-LM, "
        "whose λ is a constant.",
        set_by=("serve", "request"),
    )

    def __post_init__(self) -> None:
        check_fields(self)


class StoredSettings(TypedDict, total=False):
    """The settings that a datastore keeps, as keyword arguments."""

    k: int | None
    lmbda: float | None
    temperature: float | None
    suffix_weight: float | None


class SearchSettings(TypedDict, total=False):
    """The settings of `KNNConfig`, beside k, λ and temperature, as keyword arguments."""

    refine: bool
    nprobe: int | None
    retomaton: bool | None
    min_knns: int | None
    max_knns: int | None
    pointer_weight: float | None
    suffix_weight: float | None
    exclude: Sequence[str] | None
    infini_gram: float | Literal["auto"] | None


@documented
@dataclass(frozen=True)
class IndexConfig:
    """The kind of index over the keys."""

    factory: str = setting(
        "auto",
        "Index type, such as IVF1024,Flat, IVF1024,SQ8 or IVF1024,PQ64.",
        details='"exact" is torch without approximation. "auto" chooses by the number of entries.',
        option="--index",
        metavar="FACTORY|exact|auto",
    )
    metric: Metric | None = setting(
        None,
        "Metric of the keys.",
        details="None keeps a datastore's metric, and takes squared L2 distance for a new one.",
    )
    nprobe: int | None = setting(
        None,
        "Number of inverted lists searched per query.",
        details="None takes the smallest number that reaches the recall on a sample.",
        least=1,
    )
    train_size: int | None = setting(
        None,
        "Maximum number of training keys of the index; None depends on the index type.",
        least=1,
        option="",
    )
    seed: int = setting(0, "Random seed of the build.", least=0, most=MOST_SEED, option="")

    def __post_init__(self) -> None:
        if not isinstance(self.factory, str) or not self.factory.strip():
            raise ConfigError("the index must be 'exact', 'auto' or a type such as 'IVF1024,SQ8'")
        check_fields(self)


def index_config(index: IndexConfig | str | None) -> IndexConfig:
    """Returns an index's settings; a string is a factory, and None takes the defaults."""
    if index is None or isinstance(index, str):
        return IndexConfig() if index is None else IndexConfig(index)
    if not isinstance(index, IndexConfig):
        raise ConfigError(
            f"index must be an IndexConfig such as IndexConfig('exact'), not {index!r}"
        )
    return index


def check_threads(threads: int | None) -> None:
    """Refuses more threads than a process can start, since it would end without any message."""
    if threads is not None:
        whole_number("threads", threads, 1, MOST_THREADS)


@documented
@dataclass(frozen=True)
class WindowConfig:
    """How a document longer than the model's context is cut.

    Every token is predicted once, with at least `window - stride` tokens before it where the
    document has them (the sliding window of the published perplexities).
    """

    window: int | None = setting(
        None,
        "Size of the context window in tokens.",
        details="None takes the model's context length, but at most 1024.",
        least=2,
    )
    stride: int | None = setting(
        None, "Stride of the window in tokens.", details="None takes half the window.", least=1
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.window is not None and self.stride is not None and self.stride > self.window:
            raise ConfigError(
                f"stride {self.stride} is larger than window {self.window}: "
                "tokens between two windows would be skipped; use a stride of at most the window"
            )


@dataclass(frozen=True)
class PassConfig:
    """How text runs through the model: its windows, and how much of it at a time."""

    window: WindowConfig = WindowConfig()
    concatenate: bool | None = setting(
        None,
        "Concatenate the documents into one stream. Defaults to the datastore's setting.",
        option="--concatenate/--no-concatenate",
    )
    batch_tokens: int | None = setting(None, "Number of tokens per forward pass.", least=1)

    def __post_init__(self) -> None:
        check_fields(self)

    def keywords(self) -> dict[str, Any]:
        """The given values, as keyword arguments of `build_datastore`, `evaluate` and others."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return {
            name: value for name, value in values.items() if value not in (None, WindowConfig())
        }


@dataclass(frozen=True)
class AskConfig:
    """How a question is answered."""

    words: Literal["auto", "quote", "write"] = setting(
        "auto",
        "Quote the sentence that answers the question, or have the model write an answer from "
        "passages; auto has a model write that passes a reading test.",
    )
    outside: Literal["decline", "model"] = setting(
        "decline",
        "If no passage answers: decline and show the nearest sentences, or let the model answer "
        "without passages.",
    )
    read: int = setting(
        3, "Number of passages in the model's context when it writes.", least=1, most=64
    )
    max_new_tokens: int = setting(120, "Maximum number of new tokens.", least=1)

    def __post_init__(self) -> None:
        check_fields(self)
