"""Folders of another user: those that may be read are read, the others are refused in a line."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from conftest import TEXTS
from folders import contents
from forked import Fork

import knn_logits
from knn_logits import Datastore, KNNLogitsError
from knn_logits.building.removing import compact

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has other permissions")
_NOBODY = 65_534


@pytest.fixture
def place():
    """A folder that every user may enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(*works):
    """What each of some calls gives as another user: "done", or the line of an error."""
    results = []

    def all_of_them():
        if os.getuid() == 0:  # root may read and write everything
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        for work in works:
            try:
                work()
                print("done")
            except KNNLogitsError as error:
                print(f"{type(error).__name__}: {error}")

    with Fork(all_of_them, KNN_LOGITS_CACHE="/nowhere/at-all") as child:
        out, err = child.ended()
    assert child.returncode == 0, err
    results = out.splitlines()
    assert len(results) == len(works)
    return results


@pytest.fixture
def jobs(model, tokenizer):
    """Changes of a datastore, each a function of its folder."""
    return [
        lambda folder: knn_logits.add_documents(model, tokenizer, folder, ["More text."]),
        lambda folder: knn_logits.sync_documents(model, tokenizer, folder, ["More text."]),
        lambda folder: knn_logits.remove_documents(folder, ["0"]),
        compact,
    ]


@pytest.fixture
def copy(store, place, jobs):
    """A copy of a datastore. Each job has run before, so that what it imports is there."""
    for number, job in enumerate(jobs):
        shutil.copytree(store.folder, place / f"{number}")
        job(place / f"{number}")
        shutil.rmtree(place / f"{number}")
    return Path(shutil.copytree(store.folder, place / "store"))


def test_a_read_only_folder_is_read_and_not_changed(copy, jobs, explain):
    before = contents(copy)
    for path in copy.iterdir():
        path.chmod(0o444)
    copy.chmod(0o555)
    reading = [
        lambda: Datastore(copy, full=True),
        lambda: explain(copy, TEXTS[1]),
    ]
    for work in reading:
        work()
    assert as_nobody(*reading) == ["done"] * len(reading)
    for line in as_nobody(*(lambda job=job: job(copy) for job in jobs)):
        assert line.startswith("StorageError: ")
        assert "Permission denied" in line
    assert contents(copy) == before
