"""The parts of a manifest, each a record of plain values: model, key, index, settings, files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

# No count in a manifest is larger, so that sums of counts do not wrap around.
LARGEST_NUMBER = 1 << 62


class Record(BaseModel):
    """Plain values that are checked strictly: unknown fields and other types are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelRecord(Record):
    """The model whose states are the keys.

    Attributes:
        id: Hub id or a folder's name, for people. It is never followed.
        revision: Commit on the Hub, if it is known.
        type: The model's type, `config.model_type`.
        config_sha256: Hash of the settings that determine what the model computes.
        dtype: Precision that the keys were computed in.
        vocabulary: Number of tokens that the model has. All values are below it.
    """

    id: str
    revision: str | None = None
    type: str
    config_sha256: str
    dtype: str
    vocabulary: int | None = Field(default=None, ge=1)


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
    def _every_token_is_seen(self) -> WindowRecord:
        if self.stride > self.window:
            raise ValueError(f"the stride {self.stride} is larger than the window {self.window}")
        return self


class PairsRecord(Record):
    """How the sources and targets of an encoder-decoder model were cut.

    Attributes:
        source_prefix: Text that stood before every source.
        source_lang: Language of the sources as the tokenizer names it, if one was set.
        target_lang: Language of the targets.
    """

    source_prefix: str = ""
    source_lang: str | None = None
    target_lang: str | None = None

    def __str__(self) -> str:
        prefix = f", read after {self.source_prefix!r}" if self.source_prefix else ""
        named = [f"from {self.source_lang}"] if self.source_lang else []
        named += [f"to {self.target_lang}"] if self.target_lang else []
        return f"sources and targets{prefix}" + (f", {' '.join(named)}" if named else "")


class RecallRecord(Record):
    """The share of the true `at` nearest entries that the index finds for sampled queries."""

    at: int = Field(ge=1)
    value: float = Field(ge=0, le=1)
    queries: int = Field(ge=1)


class TriedRecord(Record):
    """What was measured of a kind of index on a sample of the keys.

    Attributes:
        factory: The FAISS factory string.
        bytes: Size of such an index over all keys.
        recall: The share of the true neighbors that it finds.
        milliseconds: Time of a search for eight queries.
        seconds: Estimated time to build it.
    """

    factory: str
    bytes: int = Field(ge=0)
    recall: float = Field(ge=0, le=1)
    milliseconds: float = Field(ge=0)
    seconds: float = Field(ge=0)


class IndexRecord(Record):
    """The index: "exact" or a FAISS factory string, and what was measured on it.

    Attributes:
        native: Whether the index is stored in FAISS's own format. It is read only on request.
        tried: The kinds that it was chosen among; None where it was not chosen by measurement.
    """

    factory: str
    requested: str
    native: bool = False
    seed: int = Field(default=0, ge=0)
    train_size: int | None = Field(default=None, ge=1)
    nprobe: int | None = Field(default=None, ge=1)
    recall: RecallRecord | None = None
    tried: tuple[TriedRecord, ...] | None = Field(default=None, strict=False, max_length=64)

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        if content["tried"] is None:  # earlier manifests do not have this field
            del content["tried"]
        return content


def _without_plain_suffixes(content: dict[str, Any]) -> dict[str, Any]:
    """Leaves `suffix_weight` out where it changes nothing, as in earlier manifests."""
    if content["suffix_weight"] == 1.0:
        del content["suffix_weight"]
    return content


class SettingsRecord(Record):
    """Settings that hold where a user gives none.

    Attributes:
        suffix_weight: How many times as much an entry counts for each token before it that is also
            before the query; 1 where the text does not matter.
        calibrated: Whether the settings were fitted to text.
        stale: Whether the datastore has changed since then.
        tuned: Whether they were fitted to text given for it, and not to a sample of the datastore.
    """

    k: int = Field(ge=1)
    lmbda: float = Field(ge=0, le=1)
    temperature: float = Field(gt=0)
    suffix_weight: float = Field(default=1.0, gt=0)
    calibrated: bool = False
    stale: bool = False
    tuned: bool = False

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        # Earlier manifests do not have these fields.
        if not self.tuned:
            del content["tuned"]
        return _without_plain_suffixes(content)


class WritingRecord(Record):
    """Settings for writing text that hold where a user gives none.

    Attributes:
        retomaton: Whether to follow pointers, and search only when too few are left.
        min_knns: A search is made when fewer pointers than this are left.
        no_repeat_ngram_size: `generate()` should not write so many tokens in a row twice.
        suffix_weight: See `SettingsRecord`.
    """

    k: int = Field(ge=1)
    lmbda: float = Field(ge=0, le=1)
    temperature: float = Field(gt=0)
    suffix_weight: float = Field(default=1.0, gt=0)
    retomaton: bool = False
    min_knns: int = Field(default=1, ge=1)
    no_repeat_ngram_size: int | None = Field(default=None, ge=1)

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_plain_suffixes(handler(self))


class NearRecord(Record):
    """What text like the datastore's finds in it. `building.nearness` measures it.

    Attributes:
        distance: The limit of the distance, or of the similarity, for a neighbor to count as near.
        hits: How often one of the nearest entries has the token that follows, in [0, 1].
    """

    distance: float = Field(allow_inf_nan=False)
    hits: float = Field(ge=0, le=1)


class InfiniGramRecord(Record):
    """How much the ∞-gram counts, by the length of the text's end that stands in the corpus.

    Attributes:
        lengths: Tokens of the end, ascending from 1; each share holds up to the next length.
        shares: Its weight in the mixture at each of them.
    """

    lengths: tuple[int, ...] = Field(min_length=1, max_length=64, strict=False)
    shares: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(strict=False)

    @model_validator(mode="after")
    def _belong_together(self) -> InfiniGramRecord:
        ascending = self.lengths == tuple(sorted({1, *self.lengths}))
        if (
            not ascending
            or len(self.lengths) != len(self.shares)
            or self.lengths[-1] > LARGEST_NUMBER
        ):
            raise ValueError("the ∞-gram needs a share for each of some lengths from 1")
        return self


class LearnedRecord(Record):
    """How the rows of a learned memory were learnt. `distillation` makes such a memory.

    Attributes:
        rows: Rows for each different token of the corpus, on average.
        targets: "tokens" where the rows learnt the corpus's tokens, and "neighbors" where they
            learnt what a datastore says of these.
        entries: Tokens of the corpus that were to be predicted.
        documents: Documents of the corpus.
        epochs: How often the corpus was read until the rows were best.
        held_out: Tokens of the corpus that were held out to choose the epoch and the settings.
        perplexity_lm: Of these tokens under the model alone.
        perplexity: Of these tokens under the mixture.
    """

    rows: float = Field(gt=0)
    targets: Literal["tokens", "neighbors"]
    entries: int = Field(ge=1, le=LARGEST_NUMBER)
    documents: int = Field(ge=1, le=LARGEST_NUMBER)
    epochs: float = Field(ge=0)
    held_out: int = Field(ge=1, le=LARGEST_NUMBER)
    perplexity_lm: float = Field(ge=1)
    perplexity: float = Field(ge=1)


class OnDemandRecord(Record):
    """How keys are made on demand, for a datastore that stores none.

    Attributes:
        passage: Number of entries of a passage. Passages are found and computed as a whole.
        context: Number of tokens that the model reads before the first state of a passage.
        every: Passages are looked for again after so many tokens.
        ends: So many ends of the text are looked up in the datastore's text each time.
        found: The most passages that are found each time.
        kept: So many of the latest results count. The search runs over all of their passages.
    """

    passage: int = Field(default=64, ge=1, le=1 << 20)
    context: int = Field(default=64, ge=0, le=1 << 20)
    every: int = Field(default=8, ge=1, le=1 << 20)
    ends: int = Field(default=8, ge=1, le=1 << 10)
    found: int = Field(default=8, ge=1, le=1 << 16)
    kept: int = Field(default=32, ge=1, le=1 << 10)


class FileRecord(Record):
    """A file of the folder: a bare name, what it holds, its length in bytes and its hash."""

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = Field(default=None, strict=False)
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
