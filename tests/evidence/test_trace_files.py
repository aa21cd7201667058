"""A trace is written whole or not at all, and where it goes to what others write, too."""

import errno
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from knn_logits.errors import StorageError
from knn_logits.evidence.writing import write_whole

WRITE = "from knn_logits.evidence.writing import write_whole; write_whole({!r}, 'a trace\\n')"


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
    path = tmp_path / ("t" * 250)
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


@pytest.mark.parametrize(("how", "place"), [("w", "/dev/stdout"), ("a", "/dev/fd/1"), ("a", "log")])
def test_standard_output_that_is_a_file_keeps_what_others_write(tmp_path, how, place):
    target = tmp_path / "log"
    target.write_text("old\n" if how == "a" else "")
    codes = ["print('first')", WRITE.format(place), "print('last')"]
    with target.open(how) as file:
        for code in codes:
            subprocess.run([sys.executable, "-c", code], stdout=file, check=True, cwd=tmp_path)
    assert target.read_text() == ("old\n" if how == "a" else "") + "first\na trace\nlast\n"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no such folder")
def test_a_file_in_memory_is_written_anew():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for text in ("the first trace", "another"):
            write_whole(Path(folder) / "t.json", text)
        assert (Path(folder) / "t.json").read_text() == "another"
