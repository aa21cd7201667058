"""A trace is written whole or not at all."""

import errno

import pytest

from knn_logits.errors import StorageError


@pytest.fixture(scope="module")
def trace(explain, store):
    return explain(store, "The harbour crane lifts crates.", k=4)


def test_a_file_stays_whole_if_the_disk_is_full(trace, tmp_path, monkeypatch):
    trace.save(tmp_path / "t.json")
    trace.save_html(tmp_path / "t.html")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for save, name in ((trace.save, "t.json"), (trace.save_html, "t.html")):
        with pytest.raises(StorageError, match="No space left"):
            save(tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
