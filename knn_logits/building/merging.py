"""`merge_entries`: near entries of one token in one document become one entry that counts more.

He, Neubig, Berg-Kirkpatrick (2021), "Efficient Nearest Neighbor Language Models", section 4.2,
merge over the whole datastore by rank; here the nearest pairs of a document come first (LOG.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import torch

from knn_logits.arrays import Array, Ints
from knn_logits.building.indexing import same_kind, write_index
from knn_logits.building.nearness import near_record, nearness_of
from knn_logits.engine.compatibility import needs_keys
from knn_logits.errors import ConfigError
from knn_logits.index.base import prepared
from knn_logits.index.opening import check_leaves_out
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.settings.config import check_threads, share
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import begin
from knn_logits.store.manifest import needs_text

# Each entry is paired with so many of the nearest of its token and document.
_PAIRED = 16
# The most distances that are computed at once, which are 64 MB of float32.
_BLOCK = 16 << 20
_PAIRS_BETWEEN_REPORTS = 1 << 18


def merge_entries(
    datastore: Datastore | str | os.PathLike[str],
    keep: float = 0.5,
    *,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> Datastore:
    """Leaves entries out of the index that others stand for, and makes the index anew.

    Two entries are merged if they have the same token and stand in the same document, the nearest
    pairs first. The one that stays votes with the weight of all that it stands for. It keeps its
    own place in the text, and its document gets exactly the shares that it had. Keys, tokens and
    the numbers of entries stay as they are. So merging can be undone, and RetoMaton follows the
    text as before. A pointer to an entry that is not in the index counts as one entry.

    Args:
        datastore: A datastore with its keys, or its folder.
        keep: The share of the entries that stay in the index, above 0 and at most 1. With 1 nothing
            is merged, which undoes an earlier merging.
        threads: OpenMP threads of the index; None leaves FAISS's own choice.
        progress: A callback that is told how far the work is.

    Returns:
        The datastore, opened again.

    Raises:
        ConfigError: when `keep` is out of its range, when too few entries can be merged, or when
            the datastore's kind of index cannot leave entries out.
        DatastoreError: when the datastore has no keys.
        BusyError: when another process is writing the datastore.
        StorageError: when the disk is full. The datastore is then unchanged.
    """
    keep = share("keep", keep)
    check_threads(threads)
    store = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    folder = store.folder.resolve()
    needs_text(store.manifest, store.folder, "`merge`")
    needs_keys(store, "`merge`")
    with begin(folder, "index", {"keep": repr(keep)}) as job:
        if job.ended:
            job.give_up()
            return Datastore(folder)
        store = Datastore(folder)
        old = store.manifest
        job.drop("merged")
        if keep < 1.0:
            job.write("merged", merged_into(store, keep, progress))
        without: tuple[layout.Kind, ...] = () if keep < 1.0 else ("merged",)
        changed = Datastore.unfinished(folder, job.manifest(old, without=without))
        check_leaves_out(changed, old.index.factory)
        index, record = same_kind(changed, old.index, old.index.factory, threads, progress)
        write_index(job, changed, index, record, store.checks)
        nearness = near_record(changed, nearness_of(changed, index, record.seed))
        settings = old.settings
        if old.file("gate") is not None:  # it was fitted to what a search found before
            settings = settings.model_copy(update={"stale": True})
        job.commit(old, without=without, index=record, settings=settings, near=nearness)
    return Datastore(folder)


def merged_into(store: Datastore, keep: float, progress: Progress = no_progress) -> Array:
    """Chooses the entry that stands for each entry, which may be itself, int32 [entries]."""
    pairs = _pairs(store, progress)
    total = len(store)
    goal = left = total - max(1, round(keep * total))
    into = np.arange(total, dtype=np.int32)
    counts = np.ones(total, np.int64)
    progress("merging", 0, goal)
    for first in range(0, len(pairs), _PAIRS_BETWEEN_REPORTS):
        for a, b in pairs[first : first + _PAIRS_BETWEEN_REPORTS].tolist():
            if not left:
                break
            # Only entries that still stand for themselves are compared.
            if into[a] != a or into[b] != b:
                continue
            larger, smaller = (b, a) if (counts[b], -b) > (counts[a], -a) else (a, b)
            into[smaller] = larger
            counts[larger] += counts[smaller]
            left -= 1
        progress("merging", goal - left, goal)
    if left:
        least = (total - goal + left) / total
        raise ConfigError(
            f"{store.folder} has too few nearby entries with the same token in the same "
            f"document: at least {least:.2f} of them remain, so use --keep "
            f"{np.ceil(100 * least) / 100:.2f} or more"
        )
    # An entry may stand for others, and be merged after that.
    while not np.array_equal(into[into], into):
        into = into[into]
    return into


def _pairs(store: Datastore, progress: Progress) -> Ints:
    """Pairs of entries of one token and document, the nearest first, int32 [pairs, 2]."""
    documents = store.contexts.document_of_entries(store.documents.length)
    values = store.values.numpy().astype(np.int64)
    # `compact` may drop the entry of a document's first token, so it stands for no other.
    begins = np.ones(len(documents), dtype=bool)
    begins[1:] = documents[1:] != documents[:-1]
    free = np.flatnonzero(~begins)
    pairs: list[Array] = [np.empty((0, 2), np.int32)]
    distances: list[Array] = [np.empty(0, np.float32)]
    count = counter(progress, "pairs", len(free))
    for entries in _groups(free, documents, values):
        for block, squares in _nearest_pairs(store, entries):
            pairs.append(block)
            distances.append(squares)
        count(len(entries))
    order = np.argsort(np.concatenate(distances), kind="stable")
    return np.asarray(np.concatenate(pairs)[order])


def _groups(free: Ints, documents: Ints, values: Array) -> Iterator[Ints]:
    """Yields the entries of each token of each document."""
    order = free[np.lexsort((free, values[free], documents[free]))]
    new = (np.diff(documents[order]) != 0) | (np.diff(values[order]) != 0)
    yield from np.split(order, np.flatnonzero(new) + 1)


def _nearest_pairs(store: Datastore, entries: Ints) -> Iterator[tuple[Array, Array]]:
    """Yields pairs of some entries with their distances, int32 [pairs, 2] and float32."""
    if len(entries) < 2:
        return
    keys = torch.from_numpy(prepared(store.keys(entries), store.manifest.metric))
    rows, count = max(1, _BLOCK // len(entries)), min(_PAIRED, len(entries) - 1)
    for first in range(0, len(entries), rows):
        block = slice(first, first + rows)
        distances = torch.cdist(keys[block], keys)
        distances[:, block].fill_diagonal_(torch.inf)
        nearest = distances.topk(count, largest=False)
        pairs = np.repeat(entries[block], count), entries[nearest.indices.numpy()].reshape(-1)
        yield np.stack(pairs, axis=1).astype(np.int32), nearest.values.numpy().reshape(-1)
