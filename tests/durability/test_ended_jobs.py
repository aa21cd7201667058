"""A job that is stopped after its last step, before it clears up: the same again does only that."""

import shutil

import pytest
import stores

from knn_logits import Datastore
from knn_logits.hub.pull import copy_fetched
from knn_logits.progress import no_progress
from knn_logits.store import layout
from knn_logits.store.manifest import Manifest

KINDS = ["build", "add", "sync", "compact", "index", "cluster", "gate", "import_", "pull"]


class Jobs(stores.EveryJob):
    """With what `pull` does once all of it is here in the place of `pull`."""

    def pull(self, folder):
        store = Datastore(self._published)
        copy_fetched(store, store.manifest.files, self.place("pull", folder), no_progress)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("outside"), documents=6, index="IVF2,SQ8")


@pytest.fixture
def stopped(jobs, monkeypatch):
    """Runs a job that is stopped when its manifest is in place."""
    real = Manifest.write

    def write(manifest, target):
        real(manifest, target)
        raise KeyboardInterrupt

    def run(kind, folder):
        with monkeypatch.context() as patch:
            patch.setattr(Manifest, "write", write)
            with pytest.raises(KeyboardInterrupt):
                jobs.run(kind, folder)
        assert (jobs.place(kind, folder) / layout.JOURNAL).exists()

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_job_again_only_clears_up(jobs, stopped, tmp_path, kind):
    whole, folder = tmp_path / "whole", tmp_path / "s"
    jobs.prepare(kind, whole)
    if whole.exists():
        shutil.copytree(whole, folder)
    jobs.run(kind, whole)
    stopped(kind, folder)
    jobs.run(kind, folder)
    assert jobs.state(kind, folder) == jobs.state(kind, whole)


@pytest.mark.parametrize("kind", ["index", "cluster", "gate"])
def test_another_job_of_the_kind_is_done(jobs, stopped, tmp_path, kind):
    """What a job was asked for is in its plan, so that another is not taken for it."""
    folder = tmp_path / "s"
    jobs.prepare(kind, folder)
    stopped(kind, folder)
    first = Datastore(folder).manifest
    if kind == "index":
        stores.build_index(Datastore(folder), stores.IndexConfig("IVF2,Flat", metric="cosine"))
    elif kind == "cluster":
        stores.cluster(folder, 5)
    else:
        gate = stores.random_meta_k(seed=1)
        stores.write_settings(Datastore(folder), 8, 0.5, 3.0, gate)
    again = Datastore(folder).manifest
    assert again.generation == first.generation + 1
    written = "clusters" if kind == "cluster" else kind
    assert again.file(written).sha256 != first.file(written).sha256
