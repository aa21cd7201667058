import contextlib
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from folders import one_line
from forked import Fork
from handmade import make_store

from knn_logits import Datastore, IndexConfig, build_index
from knn_logits.building.removing import compact, remove_documents
from knn_logits.errors import DamagedError
from knn_logits.index.opening import open_index
from knn_logits.store import datastore as store_module
from knn_logits.store import files
from knn_logits.store.files import array_facts, map_array, read_arrays, regular_file


@pytest.fixture
def array(tmp_path):
    """A file of float16 [3, 4]."""
    path = tmp_path / "a.npy"
    files.write_array(path, np.arange(12, dtype=np.float16).reshape(3, 4))
    return path


@pytest.mark.parametrize("shape", [(4, 3), (3, 5), (12,), (3,), (3, 4, 1), (0, 4), ()])
def test_a_mapped_array_has_the_shape_the_type_and_the_size_that_are_expected(array, shape):
    with pytest.raises(DamagedError, match=r"a\.npy"):
        map_array(array, "float16", shape)
    with pytest.raises(DamagedError, match="holds float16"):
        map_array(array, "int16", (3, 4))
    whole = array.read_bytes()
    for content in (whole[:-1], whole + b"\0"):
        array.write_bytes(content)
        with pytest.raises(DamagedError, match="bytes"):
            map_array(array, "float16", (3, 4))


def with_header(path, text):
    body = text.encode().ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{'descr': '<f2', 'fortran_order': True, 'shape': (3,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f2', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '<f2', 'fortran_order': False, 'shape': (1e9,)}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (3,)}",
        "__import__('os').getcwd()",
        "-" * 100 + "1",
    ],
)
def test_headers_that_this_package_does_not_write(tmp_path, text):
    path = with_header(tmp_path / "a.npy", text)
    with pytest.raises(ValueError, match="header"):
        array_facts(path)
    with pytest.raises(DamagedError):
        map_array(path, "float16", (3,))


def test_headers_are_read_by_many_threads_at_once(array):
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(array_facts, [array] * 500)) == {("float16", (3, 4), 128)}


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"\xff" * 64, b"{}"])
def test_damaged_named_arrays(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(DamagedError, match=r"x\.safetensors"):
        read_arrays(tmp_path / "x.safetensors")
    with pytest.raises(DamagedError):
        read_arrays(tmp_path / "none.safetensors")


# Files that are none


def test_what_is_no_file(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(DamagedError, match="not a regular file") as caught:
            regular_file(tmp_path / name)
        one_line(caught)
    with pytest.raises(DamagedError, match="is missing"):
        regular_file(tmp_path / "none")


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "there").write_text("x")
    for target in ("there", "/etc/passwd", "link", "none"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(target)
        with pytest.raises(DamagedError, match=r"is a link|is missing"):
            regular_file(tmp_path / "link")


@pytest.fixture
def snapshot(tmp_path):
    """A folder as the Hub's client makes it: links into the blobs of the same repository."""
    blobs = tmp_path / "repo" / "blobs"
    folder = tmp_path / "repo" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    (blobs / "0123").write_text("content")
    return folder


def test_links_of_the_hubs_client_are_followed(snapshot):
    (snapshot / "a").symlink_to("../../blobs/0123")
    assert regular_file(snapshot / "a").st_size == 7


@pytest.mark.parametrize("target", ["../../../secret", "../../blobs/../../secret", "/etc/passwd"])
def test_links_out_of_the_repository_are_not(snapshot, tmp_path, target):
    (tmp_path / "secret").write_text("secret")
    (snapshot / "a").symlink_to(target)
    with pytest.raises(DamagedError, match=r"is a link|is missing"):
        regular_file(snapshot / "a")
    # A link among the blobs that leads on.
    (snapshot.parent.parent / "blobs" / "4567").symlink_to(tmp_path / "secret")
    (snapshot / "b").symlink_to("../../blobs/4567")
    with pytest.raises(DamagedError, match="is a link"):
        regular_file(snapshot / "b")


RANDOM = np.random.default_rng(4)
DOCUMENTS = [RANDOM.integers(0, 100, 21).tolist() for _ in range(10)]
KEYS = RANDOM.standard_normal((200, 8)).astype(np.float16)


def read(folder, enough, stop):
    """Opens a datastore until it is told to stop; makes a file when it has seen enough."""
    torch.set_num_threads(1)
    seen, openings = set(), 0
    while not stop.exists():
        store = Datastore(folder)
        openings += 1
        index = open_index(store)
        query = torch.from_numpy(store.keys(np.array([0])).astype(np.float32))
        assert index.search(query, 1)[1].shape == (1, 1)
        assert len(store.values) == len(store)
        assert store.passage(len(store) - 1).document.id
        seen.add((store.manifest.index.factory, store.manifest.documents))
        if openings > 3 and len(seen) > 1:
            enough.touch()
    print(openings, len(seen))


def test_other_processes_open_it_again_and_again_while_jobs_change_it(tmp_path):
    folder = make_store(tmp_path / "s", DOCUMENTS, KEYS, shard_bytes=500).folder
    enough, stop = [tmp_path / "one", tmp_path / "other"], tmp_path / "stop"
    with contextlib.ExitStack() as stack:
        readers = [
            stack.enter_context(Fork(lambda one=one: read(folder, one, stop))) for one in enough
        ]
        for turn in itertools.count():
            if turn >= 12 and all(one.exists() for one in enough):
                break
            assert all(reader.runs() for reader in readers), readers[0].stderr.read()
            build_index(
                Datastore(folder), IndexConfig(("IVF2,Flat", "exact", "IVF3,Flat")[turn % 3])
            )
            if turn % 4 == 3 and turn < 12:
                compact(remove_documents(folder, [str(turn // 4)]))
            make_again = turn == 6
            if make_again:
                make_store(folder, DOCUMENTS, KEYS, shard_bytes=500)
        stop.touch()
        for reader in readers:
            out, errors = reader.ended()
            assert reader.returncode == 0, errors[-2000:]
            openings, states = map(int, out.split())
            assert openings > 3
            assert states > 1


@pytest.mark.parametrize("moment", ["damage", "read_arrays"])
def test_a_job_that_ends_while_a_reader_opens(tmp_path, monkeypatch, moment):
    """Between the reading of the manifest and that of the files it names."""
    folder = make_store(tmp_path / "s", DOCUMENTS, KEYS).folder
    turns = []

    def meanwhile():
        turns.append(len(turns))
        if len(turns) == 1:
            make_store(folder, DOCUMENTS[:5], KEYS[:100])

    owner = store_module.verification if moment == "damage" else store_module
    real = getattr(owner, moment)

    def slow(*arguments, **settings):
        # Not within the openings of the job itself.
        if threading.current_thread().name == "reader_0":
            with ThreadPoolExecutor(1) as thread:
                thread.submit(meanwhile).result()
        return real(*arguments, **settings)

    monkeypatch.setattr(owner, moment, slow)
    with ThreadPoolExecutor(1, "reader") as reader:
        assert len(reader.submit(Datastore, folder).result()) == 100
    assert len(turns) == 2


def test_keys_that_a_job_removes_while_a_reader_opens(tmp_path, monkeypatch):
    """They once counted as not fetched yet, as those of a download may be."""
    folder = make_store(tmp_path / "s", DOCUMENTS, KEYS).folder
    real, turns = store_module.Contexts, []

    def slow(*arguments):
        turns.append(threading.current_thread().name)
        if turns == ["reader_0"]:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(lambda: compact(remove_documents(folder, ["0"]))).result()
        return real(*arguments)

    monkeypatch.setattr(store_module, "Contexts", slow)
    with ThreadPoolExecutor(1, "reader") as reader:
        store = reader.submit(Datastore, folder).result()
    assert turns.count("reader_0") == 2
    assert store.has_keys
    assert len(store) == 180
