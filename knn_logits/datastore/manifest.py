"""`datastore.json`: everything needed to refuse a wrong model or a damaged file.

It is the last file that a build writes: a folder without it is no datastore.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from knn_logits.config import Metric
from knn_logits.datastore import layout
from knn_logits.datastore.files import write_bytes
from knn_logits.errors import DamagedError, DatastoreError, IncompleteError

FORMAT: Literal["knn-logits datastore"] = "knn-logits datastore"
FORMAT_VERSION: Literal[1] = 1
_LARGEST_MANIFEST = 64 << 20
_LARGEST_NUMBER = 1 << 62


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelRecord(_Record):
    """The model whose states are the keys.

    Attributes:
        id: Hub id or folder's name, for people; never followed.
        revision: Commit on the Hub, if known.
        type: `config.model_type`.
        config_sha256: Hash of the settings that shape the computation.
        dtype: Precision the keys were computed in.
    """

    id: str
    revision: str | None = None
    type: str
    config_sha256: str
    dtype: str


class TokenizerRecord(_Record):
    """The tokenizer that cut the corpus: its hash covers vocabulary and behaviour."""

    id: str
    sha256: str
    vocabulary: int = Field(ge=1)


class KeyRecord(_Record):
    """Where the key is: the name given, and the module and side that it meant."""

    name: str
    module: str
    side: Literal["input", "output"]


class WindowRecord(_Record):
    """How the corpus was cut for the model."""

    window: int = Field(ge=1)
    stride: int = Field(ge=1)
    concatenate: bool = False


class RecallRecord(_Record):
    """Share of the true `at` nearest entries that the index finds, on sampled queries."""

    at: int = Field(ge=1)
    value: float = Field(ge=0, le=1)
    queries: int = Field(ge=1)


class IndexRecord(_Record):
    """The index: "exact", or a FAISS factory string with what was measured on it."""

    factory: str
    requested: str
    seed: int = Field(default=0, ge=0)
    train_size: int | None = Field(default=None, ge=1)
    nprobe: int | None = Field(default=None, ge=1)
    recall: RecallRecord | None = None


class SettingsRecord(_Record):
    """Settings that hold where a user gives none; `calibrated` once they were fitted to text."""

    k: int = Field(ge=1)
    lmbda: float = Field(ge=0, le=1)
    temperature: float = Field(gt=0)
    calibrated: bool = False


class FileRecord(_Record):
    """A file of the folder: a bare name, what it holds, its length in bytes and its hash."""

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = Field(default=None, strict=False)
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(_Record):
    """The whole of `datastore.json`.

    Attributes:
        entries: Keys in the datastore.
        documents: Documents they come from.
        tokens: Tokens of all documents: entries plus one a document that starts a context.
        dim: Length of a key.
        dtype: Precision of the stored keys.
        metric: How keys are compared.
        skipped: Documents of the corpus that could not be read.
        license: Licence of the text, as given by its publisher.
        source: Where the text comes from, as given by its publisher.
    """

    format: Literal["knn-logits datastore"] = FORMAT
    format_version: Literal[1] = FORMAT_VERSION
    created_with: str
    model: ModelRecord
    tokenizer: TokenizerRecord
    key: KeyRecord
    entries: int = Field(ge=0, le=_LARGEST_NUMBER)
    documents: int = Field(ge=0, le=_LARGEST_NUMBER)
    tokens: int = Field(ge=0, le=_LARGEST_NUMBER)
    dim: int = Field(ge=1, le=_LARGEST_NUMBER)
    dtype: Literal["float16", "float32"] = "float16"
    metric: Metric = "l2"
    windows: WindowRecord
    skipped: int = Field(default=0, ge=0)
    index: IndexRecord
    settings: SettingsRecord
    license: str | None = None
    source: str | None = None
    files: tuple[FileRecord, ...] = Field(strict=False)

    def file(self, name: str) -> FileRecord | None:
        """The record of a file, None when the datastore has no such file."""
        return next((record for record in self.files if record.name == name), None)

    @property
    def key_shards(self) -> list[FileRecord]:
        """The shards of keys, in order."""
        names = [record for record in self.files if layout.is_keys_name(record.name)]
        return sorted(names, key=lambda record: record.name)

    def write(self, folder: Path) -> None:
        """Writes the manifest: from then on the folder is a datastore."""
        text = json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False)
        write_bytes(folder / layout.MANIFEST, text.encode() + b"\n")


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks the manifest of a folder.

    Raises:
        DatastoreError: when the folder is no datastore.
        IncompleteError: when a build in it did not finish.
        DamagedError: when the manifest is not one that this version can read.
    """
    path = folder / layout.MANIFEST
    if not path.is_file():
        if not folder.exists():
            raise DatastoreError(f"{folder} does not exist; build it with `knn-logits build`")
        if (folder / layout.BUILDING).exists():
            raise IncompleteError(
                f"{folder} holds a build that did not finish; run the same `knn-logits build` "
                "again with --overwrite"
            )
        raise DatastoreError(
            f"{folder} is no datastore: it has no {layout.MANIFEST}; give a folder that "
            "`knn-logits build` wrote"
        )
    if path.stat().st_size > _LARGEST_MANIFEST:
        raise DamagedError(f"{path} is too large for a manifest; build it again")
    try:
        content: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is not JSON ({error}); build it again") from error
    version = content.get("format_version") if isinstance(content, dict) else None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DatastoreError(f"{path} is not the manifest of a {FORMAT}")
    if version != FORMAT_VERSION:
        raise DatastoreError(
            f"{path} has format version {version!r}, this release reads {FORMAT_VERSION}; "
            "install a newer knn-logits"
        )
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DamagedError(f"{path}: {place}: {first['msg']}; build it again") from error
    _check_names(path, manifest)
    return manifest


def _check_names(path: Path, manifest: Manifest) -> None:
    names = [record.name for record in manifest.files]
    strange = [name for name in names if not layout.is_ours(name)]
    if strange or len(set(names)) != len(names):
        raise DamagedError(f"{path} names files that no datastore has: {strange or names}")
