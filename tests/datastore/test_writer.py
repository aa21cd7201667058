import errno
import io
import os
import pathlib
import signal

import numpy as np
import pytest
from handmade import document_records, make_store, write_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from knn_logits.datastore import files, layout
from knn_logits.datastore.documents import read_documents
from knn_logits.datastore.store import Datastore
from knn_logits.datastore.writer import (
    KeyWriter,
    TokenWriter,
    mark_finished,
    prepare_folder,
    record_files,
)
from knn_logits.errors import ConfigError, CorpusError, DamagedError, DatastoreError

DOCUMENTS = [[5, 6, 7, 8], [9], [10, 11, 12]]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def one_line(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


# The folder


def test_a_new_folder_is_marked_as_unfinished(tmp_path):
    prepare_folder(tmp_path / "a" / "b", overwrite=False)
    assert names(tmp_path / "a" / "b") == [layout.BUILDING]
    mark_finished(tmp_path / "a" / "b")
    mark_finished(tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == []


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "name", ["notes.txt", "keys-1.npy", "keys-000000.npy", "tokens.npy.bak", ".hidden"]
)
def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path, name, overwrite):
    (tmp_path / name).write_text("mine")
    (tmp_path / layout.TOKENS).write_text("x")
    with pytest.raises(DatastoreError, match="other files") as caught:
        prepare_folder(tmp_path, overwrite=overwrite)
    assert name in one_line(caught)
    assert names(tmp_path) == sorted([name, layout.TOKENS])
    assert (tmp_path / name).read_text() == "mine"


def test_an_existing_datastore_is_replaced_only_when_asked(tmp_path):
    store = make_store(tmp_path / "s", DOCUMENTS)
    before = {path.name: path.read_bytes() for path in store.folder.iterdir()}
    with pytest.raises(DatastoreError, match=r"already holds a datastore.*--overwrite"):
        prepare_folder(store.folder, overwrite=False)
    assert {path.name: path.read_bytes() for path in store.folder.iterdir()} == before
    prepare_folder(store.folder, overwrite=True)
    assert names(store.folder) == [layout.BUILDING]


def test_an_unfinished_build_is_replaced_only_when_asked(tmp_path):
    prepare_folder(tmp_path, overwrite=False)
    (tmp_path / layout.partial_name(layout.TOKENS)).write_text("x")
    with pytest.raises(DatastoreError, match=r"an unfinished build.*--overwrite"):
        prepare_folder(tmp_path, overwrite=False)
    prepare_folder(tmp_path, overwrite=True)
    assert names(tmp_path) == [layout.BUILDING]


def test_the_manifest_goes_first(tmp_path, monkeypatch):
    store = make_store(tmp_path / "s", DOCUMENTS)
    gone = []
    unlink = pathlib.Path.unlink

    def watched(path, missing_ok=False):
        gone.append(path.name)
        unlink(path, missing_ok)

    monkeypatch.setattr(pathlib.Path, "unlink", watched)
    prepare_folder(store.folder, overwrite=True)
    assert gone[0] == layout.MANIFEST


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "s").write_text("x")
    with pytest.raises(DatastoreError, match="cannot use") as caught:
        prepare_folder(tmp_path / "s", overwrite=True)
    one_line(caught)


# Tokens and documents


def test_tokens_can_be_loaded_with_numpy(tmp_path):
    writer = write_tokens(tmp_path, DOCUMENTS)
    tokens = np.load(tmp_path / layout.TOKENS)
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [5, 6, 7, 8, 9, 10, 11, 12]
    assert (writer.tokens, writer.documents) == (8, 3)
    documents = read_documents(tmp_path / layout.DOCUMENTS, 3, 8)
    assert [documents[number] for number in range(3)] == document_records(DOCUMENTS)
    assert names(tmp_path) == [layout.DOCUMENTS, layout.TOKENS]


def test_contexts_are_documents_or_one_stream(tmp_path):
    apart = write_tokens(tmp_path, DOCUMENTS).contexts()
    assert (apart.first.tolist(), apart.length.tolist()) == ([0, 4, 5], [4, 1, 3])
    assert apart.entries == 5
    joined = write_tokens(tmp_path, DOCUMENTS, concatenate=True).contexts()
    assert (joined.first.tolist(), joined.length.tolist()) == ([0], [8])
    assert joined.entries == 7


@pytest.mark.parametrize("documents", [[], [[1]], [[1], [2], [3]]])
def test_no_document_of_two_tokens(tmp_path, documents):
    with pytest.raises(CorpusError, match="two tokens"):
        write_tokens(tmp_path, documents).contexts()
    if len(documents) > 1:
        assert write_tokens(tmp_path, documents, concatenate=True).contexts().entries == 2
    else:
        with pytest.raises(CorpusError, match="two tokens"):
            write_tokens(tmp_path, documents, concatenate=True).contexts()


@pytest.mark.parametrize("token", [-1, 100, 2**40])
def test_a_token_outside_the_vocabulary(tmp_path, token):
    with pytest.raises(ConfigError, match="the model knows 100") as caught:
        write_tokens(tmp_path, [[1, 2], [3, token]])
    assert str(token) in one_line(caught)
    assert layout.TOKENS not in names(tmp_path)
    assert layout.DOCUMENTS not in names(tmp_path)


def test_text_of_any_kind_about_a_document(tmp_path):
    with TokenWriter(tmp_path, concatenate=False, vocabulary=9) as writer:
        writer.add([1, 2], id="a\nb", title="Grüße 👍", uri="file:///x", metadata='{"n": 1}')
        writer.add([3], id="")
    documents = read_documents(tmp_path / layout.DOCUMENTS, 2, 3)
    assert documents[0].title == "Grüße 👍"
    assert documents[0].id == "a\nb"
    assert (documents[0].uri, documents[0].metadata) == ("file:///x", '{"n": 1}')
    assert (documents[1].id, documents[1].title, documents[1].uri) == ("", None, None)


# Keys


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 100), st.lists(st.integers(0, 15), max_size=6))
def test_shards_hold_all_keys_in_order(tmp_path_factory, entries, shard_bytes, cuts):
    folder = tmp_path_factory.mktemp("keys")
    keys = np.arange(entries * 2, dtype=np.float16).reshape(entries, 2)
    writer = KeyWriter(folder, 2, "float16", entries, shard_bytes=shard_bytes)
    first = 0
    for size in [*cuts, entries]:
        writer.append(keys[first : first + size])
        first = min(entries, first + size)
    writer.flush()
    writer.flush()
    rows = max(1, shard_bytes // 4)
    shards = [np.load(folder / layout.keys_name(n)) for n in range(-(-entries // rows))]
    assert len(names(folder)) == len(shards)
    assert all(len(shard) == rows for shard in shards[:-1])
    np.testing.assert_array_equal(np.concatenate(shards), keys)


# Arrays


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


def test_an_array_behind_such_a_header_is_loaded(tmp_path):
    array = np.arange(12, dtype=np.float16).reshape(3, 4)
    path = tmp_path / "a.npy"
    path.write_bytes(files.array_header(array.dtype, array.shape) + array.tobytes())
    np.testing.assert_array_equal(np.load(path), array)
    mapped = files.map_array(path, "float16", (3, 4))
    np.testing.assert_array_equal(mapped, array)
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


@pytest.mark.parametrize("shape", [(4, 3), (3, 5), (12,), (3,), (3, 4, 1), (0, 4), ()])
def test_a_mapped_array_has_the_shape_asked_for(tmp_path, shape):
    files.write_array(tmp_path / "a.npy", np.zeros((3, 4), np.float16))
    with pytest.raises(DamagedError, match=r"a\.npy"):
        files.map_array(tmp_path / "a.npy", "float16", shape)


def test_arrays_are_written_in_c_order(tmp_path):
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))[:, ::2]
    files.write_array(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(files.map_array(tmp_path / "a.npy", "float64", (3, 2)), array)


def test_named_arrays(tmp_path):
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.zeros((0, 4), np.float16)}
    files.write_arrays(tmp_path / "x.safetensors", arrays, {"factory": "IVF1,Flat"})
    found, metadata = files.read_arrays(tmp_path / "x.safetensors")
    assert metadata == {"factory": "IVF1,Flat"}
    assert sorted(found) == ["a", "b"]
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"\xff" * 64, b"{}"])
def test_damaged_named_arrays(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(DamagedError, match=r"x\.safetensors"):
        files.read_arrays(tmp_path / "x.safetensors")
    with pytest.raises(DamagedError):
        files.read_arrays(tmp_path / "none.safetensors")


def test_the_record_of_files(tmp_path):
    store = make_store(tmp_path / "s", DOCUMENTS, shard_bytes=16)
    records = {record.name: record for record in record_files(store.folder)}
    assert sorted(records) == [name for name in names(store.folder) if name != layout.MANIFEST]
    for name, record in records.items():
        assert record.bytes == (store.folder / name).stat().st_size
        assert record.sha256 == files.sha256(store.folder / name)
    assert records[layout.TOKENS].dtype == "int32"
    assert records[layout.TOKENS].shape == (8,)
    assert records["keys-00000.npy"].shape == (2, 4)
    assert records[layout.DOCUMENTS].shape is None


# A full disk


class FullFile:
    """A file on a disk that fills up after some bytes."""

    def __init__(self, file, room):
        self._file, self._room = file, room

    def write(self, content):
        self._room -= len(content)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(content)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *caught):
        return self._file.__exit__(*caught)

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.fixture
def full_disk(monkeypatch):
    """Lets files take some bytes each, no more."""

    def fill(room):
        real = pathlib.Path.open

        def opened(path, mode="r", *arguments, **settings):
            file = real(path, mode, *arguments, **settings)
            return FullFile(file, room) if mode == "wb" else file

        monkeypatch.setattr(pathlib.Path, "open", opened)

    return fill


def assert_disk_full(caught):
    text = one_line(caught)
    assert type(caught.value) is DatastoreError
    assert "No space left" in text
    assert "free some space" in text


def test_a_full_disk_leaves_no_small_file(tmp_path, full_disk):
    full_disk(3)
    with pytest.raises(DatastoreError) as caught:
        files.write_bytes(tmp_path / "a", b"abcd")
    assert_disk_full(caught)
    assert names(tmp_path) == []


@pytest.mark.parametrize("room", [0, 100, 128, 200])
def test_a_full_disk_leaves_no_array(tmp_path, full_disk, room):
    full_disk(room)
    with pytest.raises(DatastoreError) as caught:
        files.write_array(tmp_path / "a.npy", np.zeros(1000))
    assert_disk_full(caught)
    assert names(tmp_path) == []


def test_a_full_disk_keeps_the_file_that_was_there(tmp_path, full_disk):
    files.write_bytes(tmp_path / "a", b"old")
    full_disk(1)
    with pytest.raises(DatastoreError):
        files.write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("room", [128, 140, 159])
def test_a_full_disk_leaves_no_tokens(tmp_path, full_disk, room):
    full_disk(room)
    with pytest.raises(DatastoreError) as caught:
        write_tokens(tmp_path, DOCUMENTS)
    assert_disk_full(caught)
    assert names(tmp_path) == []


def test_a_full_disk_leaves_no_shard_and_no_datastore(tmp_path, full_disk):
    prepare_folder(tmp_path / "s", overwrite=False)
    writer = write_tokens(tmp_path / "s", DOCUMENTS)
    full_disk(150)
    keys = KeyWriter(tmp_path / "s", 4, "float16", writer.contexts().entries)
    keys.append(np.zeros((5, 4), np.float16))
    with pytest.raises(DatastoreError) as caught:
        keys.flush()
    assert_disk_full(caught)
    assert names(tmp_path / "s") == [layout.BUILDING, layout.DOCUMENTS, layout.TOKENS]
    with pytest.raises(DatastoreError, match="did not finish"):
        Datastore(tmp_path / "s")


def test_a_full_disk_leaves_no_named_arrays(tmp_path, monkeypatch):
    import safetensors.numpy

    def full(arrays, path, metadata):
        pathlib.Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    with pytest.raises(DatastoreError) as caught:
        files.write_arrays(tmp_path / "x.safetensors", {"a": np.zeros(2)}, {})
    assert_disk_full(caught)
    assert names(tmp_path) == []


def test_what_safetensors_itself_cannot_write(tmp_path):
    resource = pytest.importorskip("resource")
    # With a limit on the size of files, writing fails as on a full disk.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(DatastoreError) as caught:
            files.write_arrays(tmp_path / "x.safetensors", {"a": np.zeros(1 << 16)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert "x.safetensors" in one_line(caught)
    assert names(tmp_path) == []


def test_a_folder_that_vanished(tmp_path):
    with pytest.raises(DatastoreError, match="cannot write"):
        files.write_bytes(tmp_path / "none" / "a", b"x")
    with pytest.raises(DatastoreError, match="cannot write"):
        files.write_arrays(tmp_path / "none" / "a", {"a": np.zeros(1)}, {})


def test_all_files_are_equally_readable(tmp_path):
    files.write_bytes(tmp_path / "a.json", b"{}")
    files.write_arrays(tmp_path / "b.safetensors", {"a": np.zeros(3)}, {})
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1
