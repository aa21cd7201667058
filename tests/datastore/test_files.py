import errno
import io
import os
import signal
from contextlib import suppress

import numpy as np
import pytest
from folders import names, one_line
from hypothesis import given
from hypothesis import strategies as st

from knn_logits.datastore import files, layout
from knn_logits.datastore.reading import map_array, read_arrays
from knn_logits.errors import StorageError


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


@given(
    st.sampled_from(["int32", "float16", "float32", "int64", "uint8"]),
    st.lists(st.integers(0, 10**14), max_size=4),
)
def test_array_headers_are_numpys(dtype, shape):
    header = files.array_header(np.dtype(dtype), tuple(shape))
    assert len(header) == 128
    file = io.BytesIO(header)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == (tuple(shape), False, np.dtype(dtype))
    assert file.tell() == 128


def test_arrays_are_written_in_c_order(tmp_path):
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))[:, ::2]
    files.write_array(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(map_array(tmp_path / "a.npy", "float64", (3, 2)), array)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)


def test_named_arrays(tmp_path):
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.zeros((0, 4), np.float16)}
    files.write_arrays(tmp_path / "x.safetensors", arrays, {"factory": "IVF1,Flat"})
    found, metadata = read_arrays(tmp_path / "x.safetensors")
    assert metadata == {"factory": "IVF1,Flat"}
    assert sorted(found) == ["a", "b"]
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_all_files_are_equally_readable(tmp_path):
    for name, write in WRITERS.items():
        write(tmp_path / name)
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_is_synced_renamed_and_its_folder_synced(tmp_path, monkeypatch, kind):
    done = []
    sync, rename = files._sync, files._rename

    def synced(handle):
        done.append(os.path.realpath(f"/proc/self/fd/{handle}"))
        sync(handle)

    def renamed(old, new):
        done.append((old.name, new.name))
        rename(old, new)

    monkeypatch.setattr(files, "_sync", synced)
    monkeypatch.setattr(files, "_rename", renamed)
    WRITERS[kind](tmp_path / "a")
    partial = layout.partial_name("a")
    if os.path.isdir("/proc/self/fd"):  # noqa: PTH112
        folder = os.path.realpath(tmp_path)
        assert done == [os.path.join(folder, partial), (partial, "a"), folder]  # noqa: PTH118
    else:
        assert done[1] == (partial, "a")


# A disk that fails


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["_write", "_sync", "_rename", "_save_arrays", "_unlink"])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_disk_that_fails_keeps_the_file_that_was_there(
    tmp_path, monkeypatch, kind, operation, number
):
    if (operation, kind) in [("_write", "arrays"), ("_save_arrays", "bytes")] or (
        (operation, kind) == ("_save_arrays", "array")
    ):
        pytest.skip("not used for this kind")
    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(files, operation, fails(number))
    with pytest.raises(StorageError) as caught:
        WRITERS[kind](tmp_path / "a")
    assert_advice(caught, number)
    assert (tmp_path / "a").read_bytes() == b"old"
    if operation in ("_write", "_sync", "_save_arrays"):
        assert names(tmp_path) == ["a"]


def test_a_file_that_cannot_be_deleted(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"old")
    files.delete(tmp_path / "none")
    monkeypatch.setattr(files, "_unlink", fails(errno.EIO))
    with pytest.raises(StorageError) as caught:
        files.delete(tmp_path / "a")
    assert_advice(caught, errno.EIO)


def test_what_safetensors_itself_cannot_write(tmp_path):
    resource = pytest.importorskip("resource")
    # With a limit on the size of files, writing fails as on a full disk.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(StorageError) as caught:
            files.write_arrays(tmp_path / "x.safetensors", {"a": np.zeros(1 << 16)}, {})
        with pytest.raises(StorageError):
            files.write_array(tmp_path / "x.npy", np.zeros(1 << 16))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert "x.safetensors" in one_line(caught)
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", WRITERS)
def test_a_folder_that_vanished(tmp_path, kind):
    with pytest.raises(StorageError, match="cannot write"):
        WRITERS[kind](tmp_path / "none" / "a")


def test_an_error_about_a_file_of_the_callers_stays_that(tmp_path):
    with pytest.raises(FileNotFoundError), files.replacing(tmp_path / "a"):
        (tmp_path / "corpus.txt").read_text()
    assert names(tmp_path) == []


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
