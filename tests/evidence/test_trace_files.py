"""A trace is written whole or not at all."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor

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


def test_a_file_is_written_in_its_place_with_its_mode_and_into_a_pipe(trace, tmp_path):
    path = tmp_path / "t.json"
    trace.save(path)
    path.chmod(0o600)
    trace.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    read, write = os.pipe()
    with os.fdopen(read) as end, ThreadPoolExecutor(1) as reader:
        kept = reader.submit(end.read)
        trace.save(f"/dev/fd/{write}")
        os.close(write)
        assert kept.result(60) == path.read_text()
