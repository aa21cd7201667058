"""`Datastore`: a finished folder, read. It knows nothing of models, queries or indexes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.datastore import layout
from knn_logits.datastore.documents import (
    Contexts,
    DocumentRecord,
    Documents,
    read_documents,
)
from knn_logits.datastore.files import map_array, read_arrays
from knn_logits.datastore.manifest import Manifest, read_manifest
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

    Open one with `Datastore.from_pretrained(folder)`; `build_datastore` makes one.

    Attributes:
        folder: Where it is.
        manifest: What `datastore.json` says.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        for record in self.manifest.files:
            path = self.folder / record.name
            size = path.stat().st_size if path.is_file() else None
            if size != record.bytes:
                found = "is missing" if size is None else f"has {size} bytes"
                raise DamagedError(
                    f"{path} {found}, the manifest says {record.bytes}; build it again"
                )

    @classmethod
    def unfinished(cls, folder: Path, manifest: Manifest) -> Datastore:
        """A datastore whose manifest is not written yet, for the build that writes it."""
        store = cls.__new__(cls)
        store.folder, store.manifest = folder, manifest
        return store

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> Datastore:
        """Opens a datastore.

        Args:
            folder: A folder that `build_datastore` or `knn-logits build` wrote.

        Raises:
            DatastoreError: when the folder is no datastore.
            IncompleteError: when its build did not finish.
            DamagedError: when a file is not what the manifest says.
        """
        return cls(folder)

    def __len__(self) -> int:
        """Number of entries."""
        return self.manifest.entries

    def __repr__(self) -> str:
        return f"Datastore({str(self.folder)!r}, entries={len(self)})"

    @property
    def name(self) -> str:
        """The folder's name, for people."""
        return self.folder.resolve().name

    @cached_property
    def tokens(self) -> Array:
        """int32 [tokens]: all documents' tokens, one document after another."""
        return map_array(self.folder / layout.TOKENS, "int32", (self.manifest.tokens,))

    @cached_property
    def documents(self) -> Documents:
        """The documents, in the order of their tokens."""
        path = self.folder / layout.DOCUMENTS
        return read_documents(path, self.manifest.documents, self.manifest.tokens)

    @cached_property
    def contexts(self) -> Contexts:
        """The spans of tokens within which a context runs."""
        first = self.documents.first
        contexts = Contexts(
            first[:1] if self.manifest.windows.concatenate else first, self.manifest.tokens
        )
        if contexts.entries != len(self):
            raise DamagedError(
                f"{self.folder}: {contexts.entries} entries in {layout.TOKENS}, the manifest "
                f"says {len(self)}; build it again"
            )
        return contexts

    @cached_property
    def values(self) -> Tensor:
        """int32 [entries]: the token of each entry."""
        first, tokens = self.contexts.first, np.asarray(self.tokens)
        entries = np.ones(len(tokens), dtype=bool)
        entries[first] = False
        return torch.from_numpy(tokens[entries])

    @property
    def has_keys(self) -> bool:
        """Whether the keys are in the folder; a published datastore may do without."""
        return bool(self.manifest.key_shards) or len(self) == 0

    @cached_property
    def _shards(self) -> list[Array]:
        if not self.has_keys:
            raise DatastoreError(
                f"{self.folder} has no keys, only an index; build it again to get them"
            )
        shards = []
        for record in self.manifest.key_shards:
            if record.shape is None or record.shape[1:] != (self.manifest.dim,):
                raise DamagedError(f"{record.name} has the shape {record.shape} in the manifest")
            path = self.folder / record.name
            shards.append(map_array(path, self.manifest.dtype, record.shape))
        if sum(len(shard) for shard in shards) != len(self):
            raise DamagedError(f"{self.folder}: the shards hold another number of keys")
        return shards

    def keys(self, ids: Array) -> Array:
        """Keys by entry, in their stored precision.

        Args:
            ids: int64 [...], each in [0, entries).

        Returns:
            [..., dim].
        """
        shards, flat = self._shards, np.asarray(ids).reshape(-1)
        out = np.empty((len(flat), self.manifest.dim), self.manifest.dtype)
        first = 0
        for shard in shards:
            inside = (flat >= first) & (flat < first + len(shard))
            out[inside] = shard[flat[inside] - first]
            first += len(shard)
        return out.reshape(*np.shape(ids), self.manifest.dim)

    def key_batches(self, size: int) -> Iterator[Array]:
        """All keys in order, float32, `size` rows at a time.

        Raises:
            DatastoreError: when there are none, at once.
            DamagedError: when they do not fit the manifest, at once.
        """
        shards = self._shards
        return (
            np.asarray(shard[first : first + size], dtype=np.float32)
            for shard in shards
            for first in range(0, len(shard), size)
        )

    @cached_property
    def checks(self) -> dict[str, Array]:
        """The canary and the probe, by name."""
        return read_arrays(self.folder / layout.CHECKS)[0]

    def index_arrays(self) -> tuple[dict[str, Array], dict[str, str]] | None:
        """The index's plain arrays and what names them, None when there is no such file."""
        if self.manifest.file(layout.INDEX) is None:
            return None
        return read_arrays(self.folder / layout.INDEX)

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
