"""`Datastore` reads a finished folder. It knows nothing of models, queries or indexes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, DamagedError, DatastoreError
from knn_logits.locks import cached_property
from knn_logits.progress import Progress, no_progress
from knn_logits.store import layout, verification
from knn_logits.store.documents import Contexts, Documents, Passage
from knn_logits.store.files import hub_repo_of, map_array, map_arrays, read_arrays
from knn_logits.store.hub_client import Remote, hub_name, needed
from knn_logits.store.manifest import Manifest, read_manifest
from knn_logits.store.spans import Span, find_spans

if TYPE_CHECKING:
    from torch import Tensor


KEYS_AT_ONCE = 65_536


class Datastore:
    """A folder of (key, value) entries and of the text they come from.

    `Datastore.from_pretrained(folder or "org/name")` opens a datastore, and `build_datastore`
    makes one. It stays as it was even if its files are replaced or
    deleted, as jobs of this package do; open it again to see the change. Only a program that
    writes into a file in place can change an open datastore. If it shortens a file, reading beyond
    the new end ends the process with a signal (SIGBUS).

    Attributes:
        folder: The datastore's folder.
        manifest: The content of `datastore.json`.
        remote: The place on the Hub that it was fetched from; None for a folder.
        tokens: The tokens of all documents in order, int32 [tokens].
        documents: The documents, in the order of their tokens.
        contexts: The contexts of the text, which are spans of tokens.
        clusters: The cluster of each entry, int32 [entries]; None if there are no clusters.
        index_arrays: The index's plain arrays by name; None if it is made of the keys.
        gate_arrays: The arrays and the metadata of the gate; None without a gate.
        suffixes: uint32 [tokens - documents], from `suffix_order`; None when it was not made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        progress: Progress = no_progress,
        remote: Remote | None = None,
    ) -> None:
        self.folder, self.remote = Path(folder), remote
        self._place = self.folder.absolute()
        while True:
            self.manifest: Manifest = read_manifest(self.folder)
            try:
                problems = verification.damage(self.folder, self.manifest, progress, full=False)
                if problems:
                    raise DamagedError(problems[0])
                self._open()
                verification.check_together(self)
                return
            except (DamagedError, OSError) as error:
                # A job may have ended meanwhile and replaced files that the old manifest names.
                before = self.manifest.checksum
                if remote is None and read_manifest(self.folder).checksum != before:
                    continue
                if isinstance(error, DamagedError):
                    raise
                raise DamagedError(
                    f"{self.folder} cannot be read ({error.strerror or error}); check the disk "
                    "and its permissions"
                ) from error

    def _open(self) -> None:
        """Opens every file, so that a later change of the folder does not affect this object."""
        manifest = self.manifest
        self.tokens = map_array(self._path("tokens"), "int32", (manifest.tokens,))
        path, pairs = self._path("documents"), manifest.pairs is not None
        self.documents = Documents(path, manifest.documents, manifest.tokens, pairs=pairs)
        concatenate = manifest.windows.concatenate
        self.contexts = Contexts(self.documents.first, manifest.tokens, concatenate)
        self._open_later()
        self.clusters = manifest.array(self.folder, "clusters")
        self.suffixes = manifest.array(self.folder, "suffixes")
        self.checks = read_arrays(self._path("checks"))[0] if manifest.file("checks") else {}
        self.index_arrays = map_arrays(self._path("index"))[0] if manifest.file("index") else None
        encoded = map_arrays(self._path("vectors"))[0] if manifest.file("vectors") else {}
        # The vectors of the sentences, float16 [vectors, dim], and their number in each document.
        self.vectors, self.vector_counts = self._vectors_of(encoded)
        self.gate_arrays = read_arrays(self._path("gate")) if manifest.file("gate") else None

    def _vectors_of(self, arrays: dict[str, Array]) -> tuple[Array | None, Array]:
        vectors, counts = arrays.get(layout.VECTORS), arrays.get(layout.VECTOR_COUNTS)
        record = self.manifest.encoder
        if vectors is None or counts is None or record is None:
            return None, np.zeros(0, np.int32)
        shapes = [*vectors.shape, *counts.shape]
        expected = [int(counts.sum()), record.dim, self.manifest.documents]
        if shapes != expected or vectors.dtype != np.float16 or counts.dtype != np.int32:
            raise DamagedError(f"{self._path('vectors')} has other vectors than its manifest")
        return vectors, counts

    def _open_later(self) -> None:
        """Opens the files that a download may lack, if they are there."""
        records = self.manifest.key_shards
        # In any other folder one is missing only if a job has ended since verification.
        whole = hub_repo_of(self.folder) is None or all(
            (self.folder / record.name).exists() for record in records
        )
        self._shards = [
            # A plain view is faster to index than a memory map, and `take` is faster still.
            np.asarray(map_array(self.folder / record.name, *self.manifest.form_of(record)))
            for record in (records if whole else ())
        ]

    def _path(self, kind: layout.Kind) -> Path:
        return self.manifest.path(self.folder, kind)

    @classmethod
    def unfinished(cls, folder: Path, manifest: Manifest) -> Datastore:
        """Opens a datastore whose manifest is not written yet, for the job that writes it."""
        store = cls.__new__(cls)
        store.folder, store.manifest, store.remote = folder, manifest, None
        store._open()
        return store

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        progress: Progress = no_progress,
    ) -> Datastore:
        """Opens a datastore from a folder or from the Hub.

        Opening compares the text and every file of at most 16 MiB with its hash. From the Hub it
        fetches the manifest, the text and the index, and checks their hashes. Keys are fetched
        only when `refine` or an index that is made from them needs them.

        Args:
            name: A folder that `knn-logits build` wrote, or "org/name" on the Hub, or
                "org/name@revision", which is a branch, a tag or a commit.
            cache_dir: The Hub's cache; None takes that of huggingface_hub.
            token: Access token of the Hub; None takes the one of the login.
            local_files_only: Take the files from the cache and do not ask the Hub.
            progress: A callback that is told how far downloading and reading are.

        Returns:
            The open datastore.

        Raises:
            DatastoreError: when the folder is not a datastore.
            HubError: when the datastore cannot be fetched.
            IncompleteError: when its build did not finish.
            DamagedError: when a file differs from the manifest.
            StorageError: when the disk is full.
        """
        hub = hub_name(name)
        if hub is None:
            return cls(name, progress=progress)
        access = {"cache_dir": cache_dir, "token": token, "local_files_only": local_files_only}
        remote = Remote.find(hub, **access)
        manifest = remote.manifest()
        remote.fetch(needed(manifest), manifest, progress)
        return cls(remote.folder, progress=progress, remote=remote)

    def __len__(self) -> int:
        """Number of entries."""
        return self.manifest.entries

    def __reduce__(self) -> tuple[type[Datastore], tuple[Path]]:
        """Lets a copy, also one in another process, open the folder again."""
        return Datastore, (self._place,)

    def __repr__(self) -> str:
        return f"Datastore({str(self.folder)!r}, entries={len(self)})"

    @property
    def name(self) -> str:
        """The folder's name, or the name on the Hub, for people."""
        return hub_repo_of(self.folder) or self.folder.resolve().name

    @property
    def revision(self) -> str | None:
        """The commit on the Hub; None for a folder."""
        return self.folder.name if hub_repo_of(self.folder) else None

    @property
    def is_current(self) -> bool:
        """Whether the folder still has what this object opened, or cannot be read at the moment."""
        if self.remote is not None:
            return True
        try:
            return read_manifest(self._place).checksum == self.manifest.checksum
        except (DatastoreError, OSError):
            return True

    @cached_property
    def values(self) -> Tensor:
        """The token of each entry, int32 [entries]."""
        # Loading torch takes two seconds, and who only reads the files does not need it.
        import torch

        return torch.from_numpy(np.delete(np.asarray(self.tokens), self.contexts.first))

    @cached_property
    def removed_entries(self) -> Array:
        """The entries of removed documents, which no search finds, int64 [removed], ascending."""
        return self._entries_of(self.manifest.removed)

    def entries_of(self, documents: Sequence[str]) -> Array:
        """Returns the entries of all documents with these names, int64 [entries], ascending.

        `Documents.named` explains the names.
        """
        return self._entries_of(sorted(self._numbers_of(documents)))

    def left_out(self, exclude: Collection[str]) -> set[int]:
        """Returns the numbers of the documents that are removed or have one of these names."""
        return self._numbers_of(exclude).union(self.manifest.removed)

    def _numbers_of(self, documents: Collection[str]) -> set[int]:
        table, removed = self.documents, self.manifest.removed
        return {number for name in documents for number in table.named(name, removed)}

    def _entries_of(self, numbers: Sequence[int]) -> Array:
        rows = np.array(numbers, np.int64)
        return self.contexts.entries_of(self.documents.first[rows], self.documents.length[rows])

    @cached_property
    def goes_on(self) -> Array:
        """Whether the next entry follows in the same document, bool [entries]."""
        ends = np.zeros(self.manifest.tokens, bool)
        ends[self.documents.first + self.documents.length - 1] = True
        return ~np.delete(ends, self.contexts.first)

    @property
    def has_keys(self) -> bool:
        """Whether the keys are in the folder. A datastore may be published without them."""
        return bool(self._shards) or len(self) == 0

    @property
    def offers_keys(self) -> bool:
        """Whether the keys are in the folder, or can be fetched from the Hub."""
        return self.has_keys or bool(self.manifest.key_shards)

    def fetch_keys(self, progress: Progress = no_progress) -> None:
        """Fetches the keys, unless they are already in the folder.

        Raises:
            DatastoreError: when the datastore was published without keys.
            HubError: when they cannot be fetched.
        """
        if self.has_keys:
            return
        records = self.manifest.key_shards
        if not records:
            what = "has an index but no keys: rebuild the datastore to get them"
            if self.manifest.on_demand is not None:
                what = "computes its keys on demand: rebuild it without --no-keys to store them"
            raise DatastoreError(f"{self.folder} {what}")
        if self.remote is None:
            names = ", ".join(record.name for record in records[:3])
            raise DatastoreError(
                f"{names} of {self.name} were not fetched: run "
                f"`knn-logits pull {self.name}@{self.revision} --keys`"
            )
        self.remote.fetch(records, self.manifest, progress)
        self._open_later()

    def keys(self, ids: Array) -> Array:
        """Returns the keys of the entries `ids`, int64 [...], as [..., dim] in stored precision."""
        self.fetch_keys()
        shards, flat = self._shards, np.asarray(ids).reshape(-1)
        if len(shards) == 1:
            only: Array = np.take(shards[0], flat, axis=0)
            return only.reshape(*np.shape(ids), self.manifest.dim)
        out = np.empty((len(flat), self.manifest.dim), self.manifest.dtype)
        order = np.argsort(flat)
        ordered = flat[order]
        firsts = np.cumsum([0, *map(len, shards)])
        bounds = np.searchsorted(ordered, firsts).tolist()
        for number, (start, end) in enumerate(pairwise(bounds)):
            if start < end:
                rows = ordered[start:end] - firsts[number]
                out[order[start:end]] = np.take(shards[number], rows, axis=0)
        return out.reshape(*np.shape(ids), self.manifest.dim)

    def key_batches(
        self, first_entry: int = 0, end: int | None = None, size: int = KEYS_AT_ONCE
    ) -> Iterator[Array]:
        """Yields the keys of the entries before `end` in order, float32 [`size`, dim] at a time.

        Raises:
            DatastoreError: when there are no keys. It is raised before the iteration.
        """
        self.fetch_keys()
        last = len(self) if end is None else end

        def batches() -> Iterator[Array]:
            start = 0
            for shard in self._shards:
                inside = shard[max(0, first_entry - start) : max(0, last - start)]
                for row in range(0, len(inside), size):
                    yield np.array(inside[row : row + size], dtype=np.float32)
                start += len(shard)

        return batches()

    def passage(self, entry: int, before: int = 24, after: int = 12) -> Passage:
        """Returns the text around an entry, within its document. A learned row has only its token.

        Args:
            entry: The entry, in [0, entries).
            before: The most tokens before the entry's token.
            after: The most tokens after it.

        Raises:
            ConfigError: when there is no such entry.
        """
        if not 0 <= entry < len(self):
            raise ConfigError(f"there is no entry {entry}: entries are 0 to {len(self) - 1:,}")
        if self.manifest.learned is not None:
            before = after = 0
        position = self.contexts.token_of(entry)
        document = self.documents[self.documents.at_token(position)]
        first = max(document.first, position - before)
        last = min(document.first + document.length, position + 1 + after)
        words: list[Any] = self.tokens[first:last].tolist()
        center = position - first
        return Passage(document.shown, words[:center], words[center], words[center + 1 :])

    def trace(
        self, text: str, tokenizer: Any, *, min_tokens: int = 6, documents: int = 10
    ) -> list[Span]:
        """Finds the longest spans of any text that the documents hold word for word.

        It needs no model: the text may come from anywhere. A short string is counted and found by
        itself. Liu et al. (2025), "OLMoTrace".

        Args:
            text: The text.
            tokenizer: The tokenizer of the datastore's model, which must be a fast one.
            min_tokens: Leave out shorter spans, unless they are the whole text.
            documents: The most documents to name for each span.

        Returns:
            The spans in the order of the text, none of them within another.

        Raises:
            DatastoreError: for a learned memory, which has no text.
            ModelError: when the tokenizer does not tell each token's place.
        """
        return find_spans(self, text, tokenizer, min_tokens, documents)
