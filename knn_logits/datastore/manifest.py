"""`datastore.json`: everything needed to refuse a wrong model or a damaged file.

It is the last file that a job writes: a folder without it is no datastore, and what it does not
name does not count. A checksum of its own finds a manifest that was damaged or edited.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from knn_logits.config import Metric
from knn_logits.datastore import layout
from knn_logits.datastore.files import write_bytes
from knn_logits.datastore.reading import open_file, regular_file
from knn_logits.errors import DamagedError, DatastoreError, IncompleteError

FORMAT: Literal["knn-logits datastore"] = "knn-logits datastore"
FORMAT_VERSION: Literal[1] = 1
_LARGEST_MANIFEST = 16 << 20
_CHECKSUM = "checksum"
_LARGEST_NUMBER = 1 << 62
_LONGEST_KEY = 1 << 16


class Record(BaseModel):
    """Plain values, checked strictly: nothing unknown, nothing converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelRecord(Record):
    """The model whose states are the keys.

    Attributes:
        id: Hub id or folder's name, for people; never followed.
        revision: Commit on the Hub, if known.
        type: `config.model_type`.
        config_sha256: Hash of the settings that shape the computation.
        dtype: Precision the keys were computed in.
        vocabulary: Number of tokens the model knows; all values lie below it.
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
    """Where the key is: the name given, and the module and side that it meant."""

    name: str
    module: str
    side: Literal["input", "output"]


class WindowRecord(Record):
    """How the corpus was cut for the model."""

    window: int = Field(ge=2, le=_LARGEST_NUMBER)
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
        source_prefix: Stood before every source.
        source_lang: Language of the sources by the tokenizer's name for it, if one was set.
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
    """Share of the true `at` nearest entries that the index finds, on sampled queries."""

    at: int = Field(ge=1)
    value: float = Field(ge=0, le=1)
    queries: int = Field(ge=1)


class IndexRecord(Record):
    """The index: "exact", or a FAISS factory string with what was measured on it.

    Attributes:
        native: Whether it is kept in FAISS's own format, which is read for those only who ask.
    """

    factory: str
    requested: str
    native: bool = False
    seed: int = Field(default=0, ge=0)
    train_size: int | None = Field(default=None, ge=1)
    nprobe: int | None = Field(default=None, ge=1)
    recall: RecallRecord | None = None


class SettingsRecord(Record):
    """Settings that hold where a user gives none.

    Attributes:
        calibrated: Whether they were fitted to text.
        stale: Whether the datastore has changed since.
        tuned: Whether that was text given for it, not a sample of the datastore's own.
    """

    k: int = Field(ge=1)
    lmbda: float = Field(ge=0, le=1)
    temperature: float = Field(gt=0)
    calibrated: bool = False
    stale: bool = False
    tuned: bool = False

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        if not self.tuned:  # as in manifests that were written before there was such a thing
            del content["tuned"]
        return content


class WritingRecord(Record):
    """Settings for text that is written, where a user gives none.

    Attributes:
        retomaton: Whether passages are followed, and searched for only where one ends.
        min_knns: Pointers below which a search is made.
        no_repeat_ngram_size: Tokens in a row that `generate()` should not write twice.
    """

    k: int = Field(ge=1)
    lmbda: float = Field(ge=0, le=1)
    temperature: float = Field(gt=0)
    retomaton: bool = False
    min_knns: int = Field(default=1, ge=1)
    no_repeat_ngram_size: int | None = Field(default=None, ge=1)


class NearRecord(Record):
    """What text like the datastore's finds in it; see `building.nearness`.

    Attributes:
        distance: The distance, or the similarity, within which a neighbor counts as near.
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
        if not ascending or len(self.lengths) != len(self.shares) or self.lengths[-1] > 1 << 62:
            raise ValueError("the ∞-gram needs a share for each of some lengths from 1")
        return self


class FileRecord(Record):
    """A file of the folder: a bare name, what it holds, its length in bytes and its hash."""

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = Field(default=None, strict=False)
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(Record):
    """The whole of `datastore.json`.

    Attributes:
        entries: Keys in the datastore.
        documents: Documents they come from.
        tokens: Tokens of all documents: entries plus one a document that starts a context.
        dim: Length of a key.
        dtype: Precision of the stored keys.
        metric: How keys are compared.
        generation: Number of the job that wrote the manifest; its files carry it in their names.
        removed: Numbers of the documents that are never found any more, ascending.
        pairs: Of an encoder-decoder model, whose documents are targets with a source each.
        skipped: Documents of the corpus that could not be read.
        settings: Settings for scoring.
        writing: Settings for writing; None where those for scoring serve as well.
        near: What text like the datastore's finds in it; None where it is not known.
        infini_gram: Shares of the ∞-gram that were fitted to text; None where none were.
        license: Licence of the text, as given by its publisher.
        source: Where the text comes from, as given by its publisher.
    """

    format: Literal["knn-logits datastore"] = FORMAT
    format_version: Literal[1] = FORMAT_VERSION
    created_with: str
    generation: int = Field(default=0, ge=0, lt=1_000_000_000)
    model: ModelRecord
    tokenizer: TokenizerRecord
    key: KeyRecord
    entries: int = Field(ge=0, le=_LARGEST_NUMBER)
    documents: int = Field(ge=0, le=_LARGEST_NUMBER)
    tokens: int = Field(ge=0, le=_LARGEST_NUMBER)
    dim: int = Field(ge=1, le=_LONGEST_KEY)
    dtype: Literal["float16", "float32"] = "float16"
    metric: Metric = "l2"
    windows: WindowRecord
    removed: tuple[int, ...] = Field(default=(), strict=False)
    pairs: PairsRecord | None = None
    skipped: int = Field(default=0, ge=0)
    index: IndexRecord
    settings: SettingsRecord
    writing: WritingRecord | None = None
    near: NearRecord | None = None
    infini_gram: InfiniGramRecord | None = None
    license: str | None = None
    source: str | None = None
    files: tuple[FileRecord, ...] = Field(strict=False)

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        for name in ("writing", "near", "infini_gram"):
            if content[name] is None:  # as in manifests from before there was such a thing
                del content[name]
        return content

    def file(self, kind: layout.Kind) -> FileRecord | None:
        """The record of the file of a kind, None when the datastore has none."""
        return next((one for one in self.files if layout.kind_of(one.name) == kind), None)

    @property
    def key_shards(self) -> list[FileRecord]:
        """The shards of keys, in the order of their entries."""
        return [one for one in self.files if layout.kind_of(one.name) == "keys"]

    @property
    def checksum(self) -> str:
        """SHA-256 of everything in the manifest."""
        return _checksum(self.model_dump(mode="json"))

    def write(self, folder: Path) -> None:
        """Writes the manifest: from then on the folder is this datastore."""
        write_bytes(folder / layout.MANIFEST, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of `datastore.json`."""
        content = Manifest.model_validate(self.model_dump()).model_dump(mode="json")
        content[_CHECKSUM] = _checksum(content)
        return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks the manifest of a folder.

    Raises:
        DatastoreError: when the folder is no datastore.
        IncompleteError: when a build in it did not finish.
        DamagedError: when the manifest is not one that this version can read.
    """
    path = folder / layout.MANIFEST
    if not path.exists():
        if not folder.exists():
            raise DatastoreError(f"{folder} does not exist; build it with `knn-logits build`")
        if (folder / layout.JOURNAL).exists():
            raise IncompleteError(
                f"{folder} holds a build that did not finish; run the same `knn-logits build` "
                "again, and it goes on where it stopped"
            )
        raise DatastoreError(
            f"{folder} is no datastore: it has no {layout.MANIFEST}; give a folder that "
            "`knn-logits build` wrote"
        )
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DatastoreError(f"{path} is not the manifest of a {FORMAT}")
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise DatastoreError(
            f"{path} has format version {_shown(version)}, this release reads {FORMAT_VERSION}; "
            "install a newer knn-logits"
        )
    checksum = content.pop(_CHECKSUM, None)
    try:
        manifest = Manifest.model_validate(content)
        whole = checksum == _checksum(content)
    except (ValidationError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: {_first_problem(error)}; build it again") from error
    if not whole:
        raise DamagedError(
            f"{path} was damaged, or edited by hand: its checksum does not fit; get it again, and "
            "change settings with `knn-logits tune --write`"
        )
    _check_files(path, manifest)
    return manifest


def read_json(path: Path) -> Any:
    """Reads JSON of moderate size, in whose objects no name occurs twice.

    Raises:
        DamagedError: when the file is none.
    """
    size = regular_file(path).st_size
    if size > _LARGEST_MANIFEST:
        raise DamagedError(f"{path} is too large ({size} bytes); build it again")
    try:
        with open_file(path) as file:
            return json.loads(file.read(_LARGEST_MANIFEST), object_pairs_hook=_unique)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise DamagedError(f"{path} is not JSON ({error}); build it again") from error


def _shown(value: Any) -> str:
    """A plain value as it is, and of any other its kind: it may be nested without end."""
    plain = value is None or isinstance(value, (int, float, str))
    return f"{value!r:.40}" if plain else f"of the type {type(value).__name__}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name occurs twice")
    return content


def _first_problem(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def _check_files(path: Path, manifest: Manifest) -> None:
    names = [record.name for record in manifest.files]
    kinds = [layout.kind_of(name) for name in names]
    strange = [name for name, kind in zip(names, kinds, strict=True) if kind is None]
    single = [kind for kind in kinds if kind not in (None, "keys")]
    if strange or len(set(names)) != len(names) or len(set(single)) != len(single):
        raise DamagedError(f"{path} names files that no datastore has: {strange or names}")
    missing = {"tokens", "documents", "checks"} - set(kinds)
    if missing:
        raise DamagedError(f"{path} names no file of {', '.join(sorted(missing))}")
    removed = manifest.removed
    if list(removed) != sorted(set(removed)) or any(
        not 0 <= number < manifest.documents for number in removed
    ):
        raise DamagedError(f"{path} names documents as removed that are not there")
