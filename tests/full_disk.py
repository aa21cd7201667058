"""A disk that is full at one moment of a change."""

import errno
import itertools
import os

from handmade import make_store

from knn_logits import Datastore
from knn_logits.errors import StorageError


def tried_on_full_disks(folder, monkeypatch, change):
    """Makes a change of four small datastores, whose disk is full at another moment for each.

    Returns:
        For each, the datastore as it is then, and whether the change said that it failed.
    """
    real, tried = os.fsync, []
    for number in range(1, 5):
        store = make_store(folder / str(number), [[1, 2, 3], [4, 5, 6]])
        calls = itertools.count(1)

        def full(file, calls=calls, number=number):
            if next(calls) == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(file)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            try:
                change(store)
                failed = False
            except StorageError:
                failed = True
        tried.append((Datastore(store.folder), failed))
    return tried
