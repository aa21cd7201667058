import errno
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from folders import names, one_line
from hypothesis import given
from hypothesis import strategies as st

from knn_logits.errors import BusyError, DatastoreError, StorageError
from knn_logits.store import files, layout
from knn_logits.store.files import locked, read_arrays
from knn_logits.store.job import begin


def fails(number):
    def operation(*arguments):
        raise OSError(number, os.strerror(number))

    return operation


def assert_advice(caught, number):
    text = one_line(caught)
    assert os.strerror(number) in text
    assert ("free some space" if number == errno.ENOSPC else "check the disk") in text
    assert "run the command again" in text


WRITERS = {
    "bytes": lambda path: files.write_bytes(path, b"abcd"),
    "array": lambda path: files.write_array(path, np.zeros(1000)),
    "arrays": lambda path: files.write_arrays(path, {"a": np.zeros(1000)}, {"b": "c"}),
}


# What is written

DTYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
DTYPES += ["bool", "float16", "float32", "float64"]


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=6).filter(lambda one: one != "__metadata__"),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), min_size=1, max_size=3)),
        min_size=1,
        max_size=6,
    ),
    st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(), max_size=1),
)
def test_safetensors_reads_what_is_written(shapes, metadata):
    from safetensors import safe_open

    arrays = {name: np.ones(shape, dtype) for name, (dtype, shape) in shapes.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        files.write_arrays(path, arrays, metadata)
        with safe_open(path, "numpy") as file:
            assert file.metadata() == metadata
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        read = read_arrays(path)
    assert read[1] == metadata
    assert found.keys() == read[0].keys()
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(read[0][name], array)


# A disk that fails


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["create", "sync", "rename", "unlink"])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_disk_that_fails_keeps_the_file_that_was_there(
    tmp_path, monkeypatch, kind, operation, number
):
    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(files, operation, fails(number))
    with pytest.raises(StorageError) as caught:
        WRITERS[kind](tmp_path / "a")
    assert_advice(caught, number)
    assert (tmp_path / "a").read_bytes() == b"old"
    if operation in ("create", "sync"):
        assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
def test_what_interrupts_the_writing_leaves_no_partial_file(tmp_path, stop):
    with suppress(stop), files.replacing(tmp_path / "a") as file:
        file.write(b"half")
        raise stop
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", WRITERS)
def test_a_link_in_the_partial_files_place_is_not_followed(tmp_path, kind):
    (tmp_path / "outside").write_bytes(b"mine")
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / layout.partial_name("a")).symlink_to(tmp_path / "outside")
    WRITERS[kind](folder / "a")
    assert (tmp_path / "outside").read_bytes() == b"mine"
    assert names(folder) == ["a"]
    assert not (folder / "a").is_symlink()


HOLDER = """
import sys, time
from pathlib import Path
from knn_logits.store.job import begin
with begin(Path(sys.argv[1]), "build", {}, overwrite=True):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that is writing the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_writer_in_another_process_is_refused_until_the_first_dies(tmp_path, other):
    folder = tmp_path / "s"
    for kind in ("build", "index"):
        with pytest.raises(BusyError) as caught, begin(folder, kind, {}, overwrite=True):
            pass
        assert "another process is writing" in one_line(caught)
        assert str(folder) in str(caught.value)
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    with begin(folder, "build", {}, overwrite=True) as job:
        assert not job.files


def test_a_lock_that_is_a_link_or_a_folder(tmp_path):
    (tmp_path / "outside").write_text("mine")
    (tmp_path / layout.LOCK).symlink_to(tmp_path / "outside")
    with pytest.raises(DatastoreError, match="is a link") as caught, locked(tmp_path):
        pass
    one_line(caught)
    assert (tmp_path / "outside").read_text() == "mine"
    (tmp_path / layout.LOCK).unlink()
    (tmp_path / layout.LOCK).mkdir()
    with pytest.raises(StorageError, match=r"\.lock cannot be written"), locked(tmp_path):
        pass
