"""Two jobs on one datastore at the same time: what each does is there at the end."""

import shutil

import pytest
import stores

from knn_logits import remove_documents
from knn_logits.errors import KNNLogitsError
from knn_logits.store import files


class Writers(stores.Jobs):
    """The jobs, all on a datastore of which a document is removed."""

    def remove(self, folder):
        return remove_documents(folder, ["0-1"])


JOBS = Writers(documents=6, shard_bytes=6000, index="IVF2,SQ8")
PAIRS = [("sync", "add"), ("compact", "remove"), ("index", "add"), ("tune", "add")]


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    folder = tmp_path_factory.mktemp("before") / "s"
    JOBS.prepare("add", folder)
    return remove_documents(folder, ["0-0"]).folder


@pytest.mark.parametrize(("first", "second"), [*PAIRS, *(pair[::-1] for pair in PAIRS)])
def test_what_a_job_read_before_another_one_ended_is_read_again(
    before, tmp_path, monkeypatch, first, second
):
    """The other job runs between the reading and the lock."""
    whole, folder = tmp_path / "whole", tmp_path / "s"
    shutil.copytree(before, whole)
    shutil.copytree(before, folder)
    JOBS.run(first, whole)
    JOBS.run(second, whole)
    acquire = files.FileLock.acquire

    def late(self, *arguments, **settings):
        monkeypatch.undo()
        JOBS.run(first, folder)
        return acquire(self, *arguments, **settings)

    monkeypatch.setattr(files.FileLock, "acquire", late)
    try:
        JOBS.run(second, folder)
    except KNNLogitsError:  # what it was given is old, such as settings for other text
        JOBS.run(second, folder)
    assert stores.state(folder) == stores.state(whole)
