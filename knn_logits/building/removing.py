"""Takes documents out of a datastore: first from every search, later from the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict

import numpy as np

from knn_logits.arrays import Bools
from knn_logits.building.indexing import index_anew, write_index, write_suffixes
from knn_logits.corpus.documents import several
from knn_logits.errors import CorpusError, DatastoreError
from knn_logits.printable import first_few
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.store import layout
from knn_logits.store.datastore import KEYS_AT_ONCE, Datastore
from knn_logits.store.files import locked
from knn_logits.store.job import Job, begin
from knn_logits.store.manifest import needs_text
from knn_logits.store.writer import write_keys, writing_text


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
        CorpusError: when no document has such an id, title or uri, when documents with several ids
            have the title or uri, or when no document would be left. Nothing is removed then.
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
        if len(numbers) == manifest.documents:
            raise CorpusError(
                f"these are all documents of {store.folder}, so nothing was removed: delete the "
                "folder instead"
            )
        settings = manifest.settings.model_copy(update={"stale": True})
        changed = {"removed": tuple(sorted(numbers)), "settings": settings}
        manifest.model_copy(update=changed).write(store.folder)
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
    datastore: Datastore | str | os.PathLike[str], *, progress: Progress = no_progress
) -> Datastore:
    """Rewrites a datastore without its removed documents, and deletes the old files.

    No token, key, code or title of a removed document is left in the folder: the index is made
    anew. No key is computed again.

    Args:
        datastore: A datastore, or its folder.
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
        if not old.removed:
            job.give_up()
            return store
        stays, entries = _staying(store)
        tokens = _write_staying(job, store, stays, entries, progress)
        manifest = job.manifest(
            old,
            without=set(layout.KINDS) - {"gate", "checks"},
            entries=int(entries.sum()),
            documents=int(stays.sum()),
            tokens=tokens,
            removed=(),
        )
        small = Datastore.unfinished(folder, manifest)
        if store.suffixes is not None:
            write_suffixes(job, small, progress)
        record = old.index
        if old.on_demand is None:
            index, record = index_anew(small, progress)
            write_index(job, index, record)
        job.commit(manifest, index=record)
    return Datastore(folder)


def _staying(store: Datastore) -> tuple[Bools, Bools]:
    """Whether each document, bool [documents], and each entry, bool [entries], stays."""
    manifest, table = store.manifest, store.documents
    if not store.has_keys and manifest.on_demand is None:
        raise DatastoreError(
            f"{store.folder} has no keys, so it cannot be compacted: rebuild it without the "
            "removed documents"
        )
    stays = np.ones(manifest.documents, dtype=bool)
    stays[list(manifest.removed)] = False
    entries = np.ones(len(store), dtype=bool)
    entries[store.removed_entries] = False
    if manifest.windows.concatenate and not stays[0]:
        # The stream now begins with another document, whose first token nothing predicts.
        begins = table.first[stays][:1]
        entries[store.contexts.entries_of(begins, np.ones_like(begins))] = False
    if not entries.any():
        raise CorpusError(
            f"all documents of {store.folder} have been removed, so nothing would remain: delete "
            "the folder instead"
        )
    return stays, entries


def _write_staying(
    job: Job, store: Datastore, stays: Bools, entries: Bools, progress: Progress
) -> int:
    """Writes the text, keys, clusters and vectors of what stays; returns the number of tokens."""
    old = store.manifest
    vocabulary = old.model.vocabulary or 1 << 31
    with writing_text(job, concatenate=old.windows.concatenate, vocabulary=vocabulary) as text:
        for number in np.flatnonzero(stays).tolist():
            fields = asdict(store.documents[number])
            first, length = fields.pop("first"), fields.pop("length")
            text.add(store.tokens[first : first + length], **fields)
    if old.on_demand is None:
        numbers = np.flatnonzero(entries)
        advance = counter(progress, "keys", len(numbers), job.keys)
        parts = np.split(numbers[job.keys :], range(KEYS_AT_ONCE, len(numbers), KEYS_AT_ONCE))
        write_keys(job, map(store.keys, parts), advance)
    if store.clusters is not None:
        job.write("clusters", np.asarray(store.clusters)[entries])
    if store.vectors is not None:
        kept = np.repeat(stays, store.vector_counts)
        arrays = {layout.VECTORS: store.vectors[kept]}
        job.write("vectors", arrays | {layout.VECTOR_COUNTS: store.vector_counts[stays]})
    return text.tokens
