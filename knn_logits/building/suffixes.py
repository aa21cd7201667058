"""The suffix index of a datastore: made for the ∞-gram, and kept when documents come and go."""

from __future__ import annotations

import os

import numpy as np

from knn_logits.arrays import Array
from knn_logits.progress import Progress, no_progress
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import write_array
from knn_logits.store.job import Job, begin
from knn_logits.store.suffixes import suffix_order


def build_suffixes(
    datastore: Datastore | str | os.PathLike[str], *, progress: Progress = no_progress
) -> Datastore:
    """Makes the suffix index of a datastore, which `infini_gram` needs: four bytes a token.

    It is made of the text alone, so that a datastore without keys gets one as well. Documents that
    are added or removed later are in it, or out of it, by themselves.

    Args:
        datastore: A datastore, or its folder.
        progress: Told how far the work is.

    Returns:
        The datastore, opened again.

    Raises:
        DatastoreError: when there are more tokens than such an index can name.
        BusyError: when another process is writing the datastore.
        StorageError: when the disk is full; the datastore is as it was.
    """
    store = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    with begin(store.folder.resolve(), "suffixes", {}) as job:
        store = Datastore(store.folder)
        if store.suffixes is not None:
            job.give_up()
            return store
        write_suffixes(job, store.tokens, store.documents.first, progress)
        job.commit(store.manifest)
    return Datastore(store.folder)


def write_suffixes(job: Job, tokens: Array, first: Array, progress: Progress) -> None:
    """Writes the suffix index of some documents among a job's files, if it is not there already.

    Args:
        job: The job.
        tokens: int32 [tokens].
        first: int64 [documents], the first token of each.
        progress: Told how far it is.
    """
    if job.file("suffixes") is None:
        write_array(job.path("suffixes"), suffix_order(np.asarray(tokens), first, progress))
        job.note(job.path("suffixes"))
