"""The manifest, `datastore.json`, which is written last and names the files of a datastore."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field, ValidationError

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError, DatastoreError, IncompleteError
from knn_logits.metrics import DEFAULT_METRIC, Metric
from knn_logits.store import layout
from knn_logits.store.files import first_problem, map_array, open_file, regular_file, write_bytes
from knn_logits.store.records import (
    Count,
    EncoderRecord,
    FileRecord,
    GateRecord,
    IndexRecord,
    KeyRecord,
    LearnedRecord,
    ModelRecord,
    OnDemandRecord,
    PairsRecord,
    Record,
    SettingsRecord,
    TokenizerRecord,
    WindowRecord,
)

FORMAT: Literal["knn-logits datastore"] = "knn-logits datastore"
FORMAT_VERSION: Literal[2] = 2
_LARGEST_MANIFEST = 16 << 20
_LONGEST_KEY = 1 << 16


class Manifest(Record):
    """The whole of `datastore.json`."""

    long = ("removed", "files")

    format: Literal["knn-logits datastore"] = FORMAT
    format_version: Literal[2] = FORMAT_VERSION
    created_with: str
    generation: int = Field(default=0, ge=0, lt=1_000_000_000)  # in the names of new files
    model: ModelRecord
    tokenizer: TokenizerRecord
    key: KeyRecord
    entries: Count
    documents: Count
    tokens: Count  # of all documents: the entries, and one for each context
    dim: int = Field(ge=1, le=_LONGEST_KEY)
    dtype: Literal["float16", "float32"] = "float16"
    metric: Metric = DEFAULT_METRIC
    windows: WindowRecord
    # Numbers of the documents that no search finds, ascending.
    removed: Annotated[tuple[int, ...], FailFast()] = Field(default=(), strict=False)
    pairs: PairsRecord | None = None  # for an encoder-decoder model
    skipped: int = Field(default=0, ge=0)  # documents of the corpus that could not be read
    index: IndexRecord
    settings: SettingsRecord
    gate: GateRecord | None = None  # None where λ is a constant, or `tune` fitted the gate
    encoder: EncoderRecord | None = None  # of the sentences; None where questions have words alone
    learned: LearnedRecord | None = None  # None for a datastore of text
    on_demand: OnDemandRecord | None = None  # None where the keys are stored
    license: str | None = None
    source: str | None = None
    files: Annotated[tuple[FileRecord, ...], FailFast()] = Field(strict=False)

    def file(self, kind: layout.Kind) -> FileRecord | None:
        return next((file for file in self.files if file.kind == kind), None)

    @property
    def key_shards(self) -> list[FileRecord]:
        """The shards of keys, in the order of their entries."""
        return [file for file in self.files if file.kind == "keys"]

    def path(self, folder: Path, kind: layout.Kind) -> Path:
        file = self.file(kind)
        return folder / (file.name if file else layout.file_name(kind))

    def form_of(self, file: FileRecord) -> tuple[str, tuple[int, ...]]:
        """The dtype and the shape that a .npy file must have; "" for the dtype of another file."""
        format = layout.FORMATS[file.kind or "index"]
        lengths = {
            "tokens": self.tokens,
            "entries": self.entries,
            "positions": max(0, self.tokens - self.documents),
            "dim": self.dim,
            None: file.shape[0] if file.shape else 0,
        }
        dtype = self.dtype if format.dtype == "key" else format.dtype or ""
        return dtype, tuple(lengths[length] for length in format.shape)

    def array(self, folder: Path, kind: layout.Kind) -> Array | None:
        """The array of the .npy file of a kind, mapped read-only; None if there is no such file."""
        file = self.file(kind)
        return map_array(folder / file.name, *self.form_of(file)) if file else None

    @property
    def checksum(self) -> str:
        return checksum_of(self.model_dump(mode="json"))

    def write(self, folder: Path) -> None:
        """Writes the manifest. From then on the folder is this datastore."""
        write_bytes(folder / layout.MANIFEST, self.to_bytes())

    def to_bytes(self) -> bytes:
        content = Manifest.model_validate(self.model_dump()).model_dump(mode="json")
        content["checksum"] = checksum_of(content)
        text = json.dumps(content, indent=1, ensure_ascii=False)
        # UTF-8 has no lone surrogates of UTF-16. JSON writes them as \udxxx.
        return text.encode(errors="backslashreplace") + b"\n"


def checksum_of(content: dict[str, Any]) -> str:
    """SHA-256 of the fields of a manifest, but the checksum."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    path = folder / layout.MANIFEST
    try:
        if not path.exists():
            if (folder / layout.JOURNAL).exists():
                raise IncompleteError(
                    f"{folder} contains an unfinished build; run the same `knn-logits build` again "
                    "to resume"
                )
            what = "is not a datastore" if folder.exists() else "does not exist"
            raise DatastoreError(
                f"{folder} {what}; make a datastore of documents with `knn-logits build MODEL "
                "DOCUMENTS --out STORE`"
            )
    except OSError as error:
        raise DatastoreError(
            f"{folder} cannot be read: {error.strerror}; check its name and its permissions"
        ) from error
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DatastoreError(f"{path} is not the manifest of a {FORMAT}; use another folder")
    if content.get("format_version") != FORMAT_VERSION:
        raise DatastoreError(
            f"{path} has another format version than {FORMAT_VERSION}, which this release reads: "
            "build the datastore again, or install a newer knn-logits"
        )
    checksum = content.pop("checksum", None)
    try:
        manifest = Manifest.model_validate(content)
        whole = checksum == checksum_of(content)
    except (ValidationError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: {first_problem(error)}; rebuild it") from error
    if not whole:
        raise DamagedError(
            f"{path} was damaged or edited by hand, since its checksum is wrong; download it "
            "again, and change settings only with `knn-logits tune --write`"
        )
    _check_files(path, manifest)
    return manifest


def read_json(path: Path) -> Any:
    size = regular_file(path).st_size
    if size > _LARGEST_MANIFEST:
        raise DamagedError(f"{path} is too large ({size} bytes); rebuild it")
    try:
        with open_file(path) as file:
            return json.loads(file.read(_LARGEST_MANIFEST))
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise DamagedError(f"{path} is not JSON ({error}); rebuild it") from error


def _check_files(path: Path, manifest: Manifest) -> None:
    names = [file.name for file in manifest.files]
    kinds = [layout.kind_of(name) for name in names]
    strange = [name for name, kind in zip(names, kinds, strict=True) if kind is None]
    single = [kind for kind in kinds if kind not in (None, "keys")]
    missing = {"tokens", "documents", "checks"} - set(kinds)
    demand, window, removed = manifest.on_demand, manifest.windows.window, manifest.removed
    problem = None
    if strange:
        problem = f"names unknown files: {strange[:3]}"
    elif len(set(names)) != len(names) or len(set(single)) != len(single):
        problem = f"names two files of one kind: {sorted(names)[:20]}"
    elif missing:
        problem = f"lacks files of {', '.join(sorted(missing))}"
    elif demand is not None and (
        "suffixes" not in kinds or demand.passage + demand.context > window
    ):
        problem = (
            "names no suffix index for keys on demand, or passages longer than its window of "
            f"{window} tokens"
        )
    elif list(removed) != sorted(set(removed)) or (
        removed and not 0 <= removed[0] <= removed[-1] < manifest.documents
    ):
        problem = "names removed documents that do not exist"
    if problem is not None:
        raise DamagedError(f"{path} {problem}; rebuild it")


def needs_text(manifest: Manifest, folder: Path, feature: str) -> None:
    """Refuses what needs the text of a corpus, such as "RetoMaton", for a learned memory."""
    if manifest.learned is not None:
        raise DatastoreError(
            f"{folder} is a learned memory without text, but {feature} needs text: use a "
            "datastore made by `knn-logits build`, or distill again from another corpus"
        )
