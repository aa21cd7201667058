"""Settings that are stored, on a disk that is full."""

import pytest
from full_disk import tried_on_full_disks

from knn_logits.measure.tune.result import write_settings


@pytest.mark.parametrize("keep_gate", [False, True])
def test_a_full_disk_is_said_only_if_nothing_was_stored(tmp_path, monkeypatch, keep_gate):
    """The disk may be full when the new manifest is in its place already."""

    def change(store):
        write_settings(store, 3, 0.125, 2.0, keep_gate=keep_gate)

    tried = tried_on_full_disks(tmp_path, monkeypatch, change)
    for store, failed in tried:
        assert (store.manifest.settings.lmbda != 0.125) is failed
    assert {failed for _, failed in tried} == {True, False}
