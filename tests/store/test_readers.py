"""Readers see the old datastore or the new one while a job is under way, never an error."""

import contextlib
import itertools
import threading

import numpy as np
import pytest
import torch
from forked import Fork
from handmade import make_store

from knn_logits import DamagedError, Datastore, IndexConfig, build_index
from knn_logits.building.removing import compact, remove_documents
from knn_logits.index.opening import open_index
from knn_logits.store import datastore as store_module

RANDOM = np.random.default_rng(4)
DOCUMENTS = [RANDOM.integers(0, 100, 21).tolist() for _ in range(10)]
KEYS = RANDOM.standard_normal((200, 8)).astype(np.float16)


def read(folder, enough, stop):
    """Opens a datastore until it is told to stop; makes a file when it has seen enough."""
    torch.set_num_threads(1)
    seen, openings = set(), 0
    while not stop.exists():
        store = Datastore(folder, full=openings % 2 == 0)
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


@pytest.mark.slow
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
            build_index(Datastore(folder), IndexConfig(("IVF2,Flat", "exact", "Flat")[turn % 3]))
            if turn % 4 == 3 and turn < 12:
                compact(remove_documents(folder, [str(turn // 4)]), shard_bytes=500)
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


@pytest.mark.parametrize("moment", ["check", "read_arrays"])
def test_a_job_that_ends_while_a_reader_opens(tmp_path, monkeypatch, moment):
    """Between the reading of the manifest and that of the files it names."""
    folder = make_store(tmp_path / "s", DOCUMENTS, KEYS).folder
    turns = []

    def meanwhile():
        turns.append(len(turns))
        if len(turns) == 1:
            make_store(folder, DOCUMENTS[:5], KEYS[:100])

    owner = store_module.verification if moment == "check" else store_module
    real = getattr(owner, moment)

    def slow(*arguments, **settings):
        # Not within the openings of the job itself.
        if threading.current_thread().name == "reader":
            thread = threading.Thread(target=meanwhile)
            thread.start()
            thread.join()
        return real(*arguments, **settings)

    monkeypatch.setattr(owner, moment, slow)
    found = []

    def read():
        try:
            found.append(len(Datastore(folder)))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=read, name="reader")
    thread.start()
    thread.join()
    assert found == [100]
    assert len(turns) == 2


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), PermissionError(13, "denied")])
def test_files_that_cannot_be_opened_are_an_error_of_the_packages_own(tmp_path, monkeypatch, error):
    folder = make_store(tmp_path / "s", DOCUMENTS, KEYS).folder

    def fails(*_):
        raise error

    monkeypatch.setattr(store_module, "read_arrays", fails)
    with pytest.raises(DamagedError, match=error.strerror) as caught:
        Datastore(folder)
    assert "\n" not in str(caught.value)


def test_a_reader_keeps_what_it_has_open_through_every_job(tmp_path):
    store = build_index(make_store(tmp_path / "s", DOCUMENTS, KEYS), IndexConfig("IVF2,Flat"))
    compact(remove_documents(store.folder, ["0"]))
    build_index(Datastore(store.folder), IndexConfig("exact"))
    make_store(store.folder, [[1, 2, 3]], KEYS[:2])
    assert len(Datastore(store.folder)) == 2
    np.testing.assert_array_equal(store.keys(np.arange(200)), KEYS)
    assert open_index(store).size == 200
    assert store.documents[9].title == "title 9"
    assert store.passage(0).document.id == "0"
