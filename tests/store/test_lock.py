import os
import signal
import subprocess
import sys
import threading

import pytest
from folders import contents, one_line
from handmade import make_store

from knn_logits.building.removing import remove_documents
from knn_logits.errors import BusyError, DatastoreError, StorageError
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import locked
from knn_logits.store.job import begin

DOCUMENTS = [[5, 6, 7, 8], [9, 10, 11]]

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
        assert not job.resumed


def test_a_second_writer_in_another_thread_is_refused(tmp_path):
    refused = []

    def second():
        try:
            with begin(tmp_path, "build", {}, overwrite=True):
                pass
        except DatastoreError as error:
            refused.append(type(error))

    with begin(tmp_path, "build", {}):
        before = contents(tmp_path)
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert contents(tmp_path) == before
    second()
    assert refused == [BusyError]


def test_every_job_is_refused_while_another_is_under_way(tmp_path):
    store = make_store(tmp_path / "s", DOCUMENTS)
    before = contents(store.folder)
    with locked(store.folder):
        with pytest.raises(BusyError):
            remove_documents(store, ["0"])
        for kind in ("build", "add", "compact", "index"):
            with pytest.raises(BusyError), begin(store.folder, kind, {}, overwrite=True):
                pass
        assert len(Datastore(store.folder)) == len(store)
    assert contents(store.folder) == before


def test_the_lock_is_let_go_of_when_a_job_fails(tmp_path):
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), begin(tmp_path, "build", {}):
            raise KeyboardInterrupt


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
