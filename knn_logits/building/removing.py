"""Takes documents out of a datastore: first from every search, later from the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict

import numpy as np

from knn_logits.arrays import Array
from knn_logits.building.encoding import write_arrays
from knn_logits.building.indexing import automatic_factory, same_kind, write_index, write_suffixes
from knn_logits.building.recall import measured
from knn_logits.building.updating import keep_checks
from knn_logits.corpus.documents import several
from knn_logits.errors import CorpusError, DatastoreError, StorageError
from knn_logits.index.base import Index
from knn_logits.index.opening import backend_of
from knn_logits.printable import first_few
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import locked
from knn_logits.store.job import Job, begin, leftovers
from knn_logits.store.manifest import needs_text, put_manifest, read_manifest
from knn_logits.store.records import IndexRecord
from knn_logits.store.writer import SHARD_BYTES, shard_rows, write_keys, writing_text

_ROWS_AT_ONCE = 65_536


def remove_documents(
    datastore: Datastore | str | os.PathLike[str], ids: str | Iterable[str]
) -> Datastore:
    """Removes documents: no search finds them from the next opening on.

    Their text and keys stay on the disk until `compact`.

    Args:
        datastore: A datastore, or its folder.
        ids: The ids of the documents, or a single id. If several documents share an id, all of
            them are removed. A name that is not an id is looked up among the titles, and then
            among the uris.

    Returns:
        The datastore, opened again.

    Raises:
        CorpusError: when no document has such an id, title or uri, or when documents with several
            ids have the title or uri. Nothing is removed then.
        BusyError: when another process is writing the datastore.
        StorageError: when the disk is full. Nothing is removed then.
    """
    folder = datastore.folder if isinstance(datastore, Datastore) else datastore
    # A string is one id, as a path is one corpus.
    ids = [ids] if isinstance(ids, str) else list(several(ids, "ids"))
    with locked(Datastore(folder).folder.resolve()):
        store = Datastore(folder)
        manifest = store.manifest
        needs_text(manifest, store.folder, "`remove`")
        numbers = set(manifest.removed)
        for name in ids:
            numbers.update(_numbers_of(store, name))
        changed = manifest.model_copy(
            update={
                "removed": tuple(sorted(numbers)),
                "settings": manifest.settings.model_copy(update={"stale": True}),
            }
        )
        put_manifest(store.folder, changed)
    return Datastore(folder)


def _numbers_of(store: Datastore, name: str) -> set[int]:
    """Returns the numbers of the documents with an id, or with a title or uri of a single id."""
    table, removed = store.documents, set(store.manifest.removed)
    numbers = set(table.named(name, removed)) - removed
    ids = list(dict.fromkeys(table[number].id for number in sorted(numbers)))
    if len(ids) > 1:
        field = "title" if table[min(numbers)].title == name else "uri"
        raise CorpusError(
            f"{len(ids)} documents have the {field} {name!r}, so nothing was removed: use their "
            f"ids instead, {first_few([repr(id) for id in ids])}"
        )
    if not numbers:
        raise CorpusError(
            f"{store.folder} has no document with the id, title or uri {name!r}, so nothing was "
            f"removed: `knn-logits info {store.folder} --documents` lists the documents"
        )
    return numbers


def compact(
    datastore: Datastore | str | os.PathLike[str],
    *,
    shard_bytes: int = SHARD_BYTES,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> Datastore:
    """Rewrites a datastore without its removed documents, and deletes the old files.

    No token, key, code or title of a removed document is left in the folder. The centroids of the
    index, which were learnt from all keys together, stay. No key is computed again.

    Args:
        datastore: A datastore, or its folder.
        shard_bytes: Size of a file of keys.
        threads: OpenMP threads of the index; None leaves FAISS's own choice.
        progress: A callback that is told how far the work is.

    Returns:
        The datastore, opened again.

    Raises:
        CorpusError: when nothing would be left.
        BusyError: when another process is writing the datastore.
        StorageError: when the disk is full. The datastore is then unchanged.
    """
    store = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    folder = store.folder.resolve()
    with begin(folder, "compact", {}) as job:
        store = Datastore(folder)
        old = store.manifest
        if job.ended and not old.removed:
            job.give_up()
            return store
        if not store.has_keys and old.on_demand is None:
            raise DatastoreError(
                f"{folder} has no keys, so it cannot be compacted: rebuild it without the "
                "removed documents"
            )
        documents = np.ones(old.documents, dtype=bool)
        documents[list(old.removed)] = False
        entries = _entries_of(store, documents)
        if not entries.any():
            raise CorpusError(
                f"all documents of {folder} have been removed, so nothing would remain: delete "
                "the folder instead"
            )
        tokens = _write_text(job, store, documents)
        if old.on_demand is None:
            advance = counter(progress, "keys", int(entries.sum()), job.keys)
            numbers = np.flatnonzero(entries)[job.keys :]
            parts = np.split(numbers, range(_ROWS_AT_ONCE, len(numbers), _ROWS_AT_ONCE))
            rows = shard_rows(old.dim, old.dtype, shard_bytes)
            write_keys(job, map(store.keys, parts), rows, advance)
        if store.clusters is not None:
            job.write("clusters", np.asarray(store.clusters)[entries])
        if store.vectors is not None:
            kept = np.repeat(documents, store.vector_counts)
            write_arrays(job, store.vectors[kept], store.vector_counts[documents])
        manifest = job.manifest(
            old,
            without=set(layout.KINDS) - {"gate"},
            entries=int(entries.sum()),
            documents=int(documents.sum()),
            tokens=tokens,
            removed=(),
        )
        small = Datastore.unfinished(folder, manifest)
        if store.suffixes is not None:
            write_suffixes(job, small, progress)
        record = old.index
        if old.on_demand is None:
            index, record = _compacted(store, small, entries, threads, progress)
            write_index(job, small, index, record, store.checks)
        else:
            keep_checks(job, store)
        job.commit(manifest, index=record)
        left = leftovers(folder, read_manifest(folder))
        if left:
            raise StorageError(
                f"{folder} was compacted, but old files could not be deleted "
                f"({', '.join(left[:3])}): run `knn-logits remove` again"
            )
    return Datastore(folder)


def _entries_of(store: Datastore, documents: Array) -> Array:
    """Selects the entries of the documents that stay, bool [entries]."""
    entries = np.ones(len(store), dtype=bool)
    entries[store.removed_entries] = False
    table = store.documents
    if store.manifest.windows.concatenate and not documents[0] and documents.any():
        # The stream now begins with the first of these, whose first token nothing predicts.
        begins = table.first[documents][:1]
        entries[store.contexts.entries_of(begins, np.ones(1, np.int64))] = False
    return entries


def _write_text(job: Job, store: Datastore, documents: Array) -> int:
    """Writes the text of the documents that stay, and returns the number of tokens."""
    manifest = store.manifest
    with writing_text(
        job,
        concatenate=manifest.windows.concatenate,
        vocabulary=manifest.model.vocabulary or 1 << 31,
    ) as text:
        for number in np.flatnonzero(documents).tolist():
            fields = asdict(store.documents[number])
            first, length = fields.pop("first"), fields.pop("length")
            text.add(store.tokens[first : first + length], **fields)
    return text.tokens


def _compacted(
    store: Datastore, small: Datastore, entries: Array, threads: int | None, progress: Progress
) -> tuple[Index, IndexRecord]:
    """Makes the index over the entries that stay. Their codes stay, and their numbers change."""
    record = store.manifest.index
    arrays, factory = store.index_arrays(), record.factory
    # A small datastore needs no approximate search, unless its user wanted one.
    if record.requested == "auto" and automatic_factory(small) == "exact":
        factory = "exact"
    if arrays is None or factory != record.factory:
        return same_kind(small, record, factory, threads, progress)
    index = backend_of(small).from_arrays(arrays, len(store), retained=entries, threads=threads)
    return index, measured(small, index, record, progress)
