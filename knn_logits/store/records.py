"""The parts of a manifest, each a record of plain values: model, key, index, settings, files."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from knn_logits.store import layout

# No count in a manifest is larger, so that sums of counts do not wrap around.
LARGEST_NUMBER = 1 << 62
_MOST_ITEMS = 64

Count = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]
Natural = Annotated[int, Field(ge=1, le=LARGEST_NUMBER)]
Share = Annotated[float, Field(ge=0, le=1)]


class Record(BaseModel):
    """Plain values that are checked strictly: unknown fields and other types are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    # Lists that can be long. They stop at the first error, since each one takes a kilobyte.
    long: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _is_short(cls, content: Any) -> Any:
        if isinstance(content, dict):
            if len(content) > _MOST_ITEMS:
                raise ValueError(f"{len(content)} fields, of at most {_MOST_ITEMS}")
            for name, value in content.items():
                short = name not in cls.long and isinstance(value, (dict, list))
                if short and len(value) > _MOST_ITEMS:
                    raise ValueError(f"{name} has {len(value)} items, of at most {_MOST_ITEMS}")
        return content


class ModelRecord(Record):
    """The model whose states are the keys. All values are below its vocabulary."""

    id: str  # a Hub id or a folder's name, which is never followed
    revision: str | None = None  # a commit on the Hub
    type: str  # `config.model_type`
    config_sha256: str  # of the settings that determine what the model computes
    dtype: str  # or the quantisation
    vocabulary: int | None = Field(default=None, ge=1)
    engine: str = "transformers"  # what computed the keys
    adapter: str | None = None  # the names of PEFT's active adapters

    @property
    def named(self) -> str:
        return self.id if self.adapter is None else f"{self.id} with its adapter {self.adapter!r}"


class TokenizerRecord(Record):
    """The tokenizer that cut the corpus: its hash covers vocabulary and behaviour."""

    id: str
    sha256: str
    vocabulary: int = Field(ge=1)


class KeyRecord(Record):
    """The place of the key: the name that was given, and the module and side that it meant."""

    name: str
    module: str
    side: Literal["input", "output"]


class WindowRecord(Record):
    """How the corpus was cut for the model."""

    window: int = Field(ge=2, le=LARGEST_NUMBER)
    stride: int = Field(ge=1)
    concatenate: bool = False

    @model_validator(mode="after")
    def _covers_every_token(self) -> WindowRecord:
        if self.stride > self.window:
            raise ValueError(f"the stride {self.stride} is larger than the window {self.window}")
        return self


class PairsRecord(Record):
    """How sources and targets were cut, with the languages that the tokenizer names."""

    source_prefix: str = ""
    source_lang: str | None = None
    target_lang: str | None = None

    def __str__(self) -> str:
        prefix = f", read after {self.source_prefix!r}" if self.source_prefix else ""
        languages = [f"from {self.source_lang}"] if self.source_lang else []
        languages += [f"to {self.target_lang}"] if self.target_lang else []
        return f"sources and targets{prefix}" + (f", {' '.join(languages)}" if languages else "")


class RecallRecord(Record):
    """The share of the true `at` nearest entries that the index finds for sampled queries."""

    at: int = Field(ge=1)
    value: Share
    queries: int = Field(ge=1)


class IndexRecord(Record):
    """The index: "exact" or a FAISS factory string, and what was measured on it."""

    factory: str
    requested: str
    seed: int = Field(default=0, ge=0)
    train_size: int | None = Field(default=None, ge=1)
    nprobe: int | None = Field(default=None, ge=1)
    recall: RecallRecord | None = None


class SettingsRecord(Record):
    """Settings that hold where a user gives none."""

    k: int = Field(ge=1)
    lmbda: Share
    temperature: float = Field(gt=0)
    # Factor for each token before an entry that is also before the query.
    suffix_weight: float = Field(default=1.0, gt=0)
    calibrated: bool = False  # fitted to text
    stale: bool = False  # the datastore has changed since then
    tuned: bool = False  # fitted to a user's text, not to a sample of the datastore
    # The least number of tokens that an answer repeats where it loops; None does not end loops.
    no_repeat_ngram_size: int | None = Field(default=None, ge=1)


class GateRecord(Record):
    """The gate that a build fitted, judged by tokens that it was not fitted to."""

    kind: str
    tokens: Natural  # that it was judged by
    gain: float  # nats per token over the model, in the corpus's documents, each left out in turn
    kept: Share  # of the choices of the model in its own text, where the mixture chooses the same
    followed: Share  # of the tokens of repeated passages of the corpus, which the mixture chooses

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.gain:+.3f} nats per token on documents that were left out, "
            f"{self.kept:.1%} of the model's own choices kept, {self.followed:.1%} of the tokens "
            "of repeated passages chosen"
        )


class EncoderRecord(Record):
    """The sentence encoder whose vectors questions are compared with."""

    id: str  # a Hub id, or a folder, which is used only where its weights have this hash
    sha256: str
    dim: int = Field(ge=1, le=1 << 16)


class LearnedRecord(Record):
    """How the rows of a learned memory were learnt; `tokens.npy` holds their tokens, ascending."""

    rows: float = Field(gt=0)  # for each different token of the corpus, on average
    entries: Natural  # of the corpus
    documents: Natural
    epochs: float = Field(ge=0)  # until the rows were best
    held_out: Natural  # tokens that chose the epoch and the settings; the perplexities are theirs
    perplexity_lm: float = Field(ge=1)
    perplexity: float = Field(ge=1)


class OnDemandRecord(Record):
    """How keys are made on demand, for a datastore that stores none."""

    passage: int = Field(default=64, ge=1, le=1 << 20)  # entries of a passage
    context: int = Field(default=64, ge=0, le=1 << 20)  # tokens before its first entry
    every: int = Field(default=8, ge=1, le=1 << 20)  # tokens between two searches for passages
    ends: int = Field(default=8, ge=1, le=1 << 10)  # ends of the text that a search looks up
    found: int = Field(default=8, ge=1, le=1 << 16)  # the most passages of a search
    kept: int = Field(default=32, ge=1, le=1 << 10)  # the latest searches whose passages count


class FileRecord(Record):
    """A file of the folder: a bare name, what it holds, its length in bytes and its hash."""

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = Field(default=None, strict=False)
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")

    @property
    def kind(self) -> layout.Kind | None:
        """The kind of its content; None if no datastore has such a file."""
        return layout.kind_of(self.name)
