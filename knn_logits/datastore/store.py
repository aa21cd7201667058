"""`Datastore`: a finished folder, read. It knows nothing of models, queries or indexes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from knn_logits.datastore import layout, verification
from knn_logits.datastore.documents import (
    Contexts,
    DocumentRecord,
    Documents,
    read_documents,
)
from knn_logits.datastore.manifest import Manifest, read_manifest
from knn_logits.datastore.reading import OpenArrays, map_array, read_arrays
from knn_logits.errors import DamagedError, DatastoreError
from knn_logits.neighbors import Array


@dataclass(frozen=True)
class Passage:
    """The text around an entry; it never crosses its document's edge.

    Attributes:
        document: Where it stands.
        before: Token ids before the entry's token.
        token: The entry's token, its value.
        after: Token ids after it.
    """

    document: DocumentRecord
    before: list[int]
    token: int
    after: list[int]


class Datastore:
    """A folder of (key, value) entries and of the text they come from.

    Open one with `Datastore.from_pretrained(folder)`; `build_datastore` makes one. What is open
    stays as it was, also when the folder changes: open it again to see the change.

    Attributes:
        folder: Where it is.
        manifest: What `datastore.json` says.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        full: bool = False,
        progress: verification.Progress = verification.no_progress,
    ) -> None:
        self.folder = Path(folder)
        while True:
            self.manifest: Manifest = read_manifest(self.folder)
            try:
                verification.check(self.folder, self.manifest, full=full, progress=progress)
                self._open()
                return
            except (DamagedError, OSError) as error:
                # A job that ended meanwhile has replaced files that the old manifest names.
                if read_manifest(self.folder).checksum != self.manifest.checksum:
                    continue
                if isinstance(error, DamagedError):
                    raise
                raise DamagedError(
                    f"{self.folder} cannot be read ({error.strerror or error}); check the disk and "
                    "its permissions"
                ) from error

    def _open(self) -> None:
        """Opens every file, so that a later change of the folder does not reach this object."""
        manifest = self.manifest
        self._tokens = map_array(self._path("tokens"), "int32", (manifest.tokens,))
        self._documents_file = pa.memory_map(str(self._path("documents")))
        self._shards = [
            map_array(self.folder / one.name, manifest.dtype, one.shape or ())
            for one in manifest.key_shards
        ]
        self.checks = read_arrays(self._path("checks"))[0] if manifest.file("checks") else {}
        self._index = OpenArrays(self._path("index")) if manifest.file("index") else None
        self._gate = OpenArrays(self._path("gate")) if manifest.file("gate") else None
        native = manifest.file("native")
        self._native = (
            np.memmap(self.folder / native.name, mode="r") if native and native.bytes else None
        )

    def _path(self, kind: layout.Kind) -> Path:
        record = self.manifest.file(kind)
        return self.folder / (record.name if record else layout.file_name(kind))

    @classmethod
    def unfinished(cls, folder: Path, manifest: Manifest) -> Datastore:
        """A datastore whose manifest is not written yet, for the job that writes it."""
        store = cls.__new__(cls)
        store.folder, store.manifest = folder, manifest
        store._open()
        return store

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        full: bool = False,
        progress: verification.Progress = verification.no_progress,
    ) -> Datastore:
        """Opens a datastore.

        The first opening on a machine reads every byte and compares it with the manifest; later
        ones look whether the files were written to since.

        Args:
            folder: A folder that `build_datastore` or `knn-logits build` wrote.
            full: Read every byte again.
            progress: Told how far the reading is.

        Raises:
            DatastoreError: when the folder is no datastore.
            IncompleteError: when its build did not finish.
            DamagedError: when a file is not what the manifest says.
        """
        return cls(folder, full=full, progress=progress)

    def __len__(self) -> int:
        """Number of entries."""
        return self.manifest.entries

    def __repr__(self) -> str:
        return f"Datastore({str(self.folder)!r}, entries={len(self)})"

    @property
    def name(self) -> str:
        """The folder's name, for people."""
        return self.folder.resolve().name

    @property
    def tokens(self) -> Array:
        """int32 [tokens]: all documents' tokens, one document after another."""
        return self._tokens

    @cached_property
    def documents(self) -> Documents:
        """The documents, in the order of their tokens."""
        manifest = self.manifest
        return read_documents(
            self._path("documents"),
            manifest.documents,
            manifest.tokens,
            mapped=self._documents_file,
        )

    @cached_property
    def contexts(self) -> Contexts:
        """The spans of tokens within which a context runs."""
        first, manifest = self.documents.first, self.manifest
        return Contexts.of(first, manifest.tokens, manifest.windows.concatenate)

    @cached_property
    def values(self) -> Tensor:
        """int32 [entries]: the token of each entry."""
        first, tokens = self.contexts.first, np.asarray(self.tokens)
        entries = np.ones(len(tokens), dtype=bool)
        entries[first] = False
        return torch.from_numpy(tokens[entries])

    @cached_property
    def removed_entries(self) -> Array:
        """int64 [removed], ascending: the entries of removed documents, which no search finds."""
        removed = np.asarray(self.manifest.removed, np.int64)
        return self.contexts.entries_of(
            self.documents.first[removed], self.documents.length[removed]
        )

    @cached_property
    def goes_on(self) -> Array:
        """bool [entries]: whether the next entry follows in the same document."""
        document = np.repeat(np.arange(len(self.documents)), self.documents.length)
        document = np.delete(document, self.contexts.first)
        on = np.zeros(len(self), dtype=bool)
        on[:-1] = document[1:] == document[:-1]
        return on

    @cached_property
    def clusters(self) -> Array | None:
        """int32 [entries], the cluster of each entry; None when none were made."""
        if self.manifest.file("clusters") is None:
            return None
        return map_array(self._path("clusters"), "int32", (len(self),))

    @property
    def has_keys(self) -> bool:
        """Whether the keys are in the folder; a published datastore may do without."""
        return bool(self._shards) or len(self) == 0

    def _all_shards(self) -> list[Array]:
        if not self.has_keys:
            raise DatastoreError(
                f"{self.folder} has no keys, only an index; build it again to get them"
            )
        return self._shards

    def keys(self, ids: Array) -> Array:
        """Keys by entry, in their stored precision.

        Args:
            ids: int64 [...], each in [0, entries).

        Returns:
            [..., dim].
        """
        shards, flat = self._all_shards(), np.asarray(ids).reshape(-1)
        if len(shards) == 1:
            # A view without the memory map's own, slower way of indexing.
            only: Array = np.asarray(shards[0])[flat]
            return only.reshape(*np.shape(ids), self.manifest.dim)
        out = np.empty((len(flat), self.manifest.dim), self.manifest.dtype)
        first = 0
        for shard in shards:
            inside = (flat >= first) & (flat < first + len(shard))
            out[inside] = shard[flat[inside] - first]
            first += len(shard)
        return out.reshape(*np.shape(ids), self.manifest.dim)

    def key_batches(self, size: int, first_entry: int = 0) -> Iterator[Array]:
        """The keys in order from an entry on, float32, `size` rows at a time.

        Raises:
            DatastoreError: when there are none, at once.
        """
        shards = self._all_shards()
        return self._batches(shards, size, first_entry)

    @staticmethod
    def _batches(shards: list[Array], size: int, first_entry: int) -> Iterator[Array]:
        start = 0
        for shard in shards:
            for first in range(max(0, first_entry - start), len(shard), size):
                yield np.asarray(shard[first : first + size], dtype=np.float32)
            start += len(shard)

    def index_arrays(self) -> dict[str, Array] | None:
        """The index's plain arrays by name, None when there is no such file."""
        return self._index.read() if self._index is not None else None

    def gate_arrays(self) -> tuple[dict[str, Array], dict[str, str]] | None:
        """The arrays and the metadata of the gate, None when there is no such file."""
        return (self._gate.read(), self._gate.metadata) if self._gate is not None else None

    def native_index(self) -> bytes | None:
        """The index in FAISS's own format, None when there is no such file."""
        return self._native.tobytes() if self._native is not None else None

    def passage(self, entry: int, before: int = 24, after: int = 12) -> Passage:
        """The text around an entry.

        Args:
            entry: In [0, entries).
            before: Tokens wanted before the entry's token.
            after: Tokens wanted after it.
        """
        position = self.contexts.token_of(entry)
        document = self.documents[self.documents.at_token(position)]
        first = max(document.first, position - before)
        last = min(document.first + document.length, position + 1 + after)
        words: list[Any] = self.tokens[first:last].tolist()
        here = position - first
        return Passage(document, words[:here], words[here], words[here + 1 :])
