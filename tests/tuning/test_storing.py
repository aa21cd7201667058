"""Settings that are stored, on a disk that is full."""

import errno
import itertools
import os

import pytest
from handmade import make_store

from knn_logits import Datastore, StorageError
from knn_logits.tuning.storing import write_settings


@pytest.mark.parametrize("keep_gate", [False, True])
def test_a_full_disk_is_said_only_if_nothing_was_stored(tmp_path, monkeypatch, keep_gate):
    """The disk may be full when the new manifest is in its place already."""
    real, told = os.fsync, []
    for number in range(1, 5):
        store = make_store(tmp_path / str(number), [[1, 2, 3], [4, 5, 6]])
        calls = itertools.count(1)

        def full(file, calls=calls, number=number):
            if next(calls) == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(file)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            try:
                write_settings(store, 3, 0.125, 2.0, keep_gate=keep_gate)
                told.append(False)
            except StorageError:
                told.append(True)
        assert (Datastore(store.folder).manifest.settings.lmbda != 0.125) is told[-1]
    assert set(told) == {True, False}
