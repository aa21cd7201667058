import logging
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from folders import contents, names, one_line
from handmade import make_store, shards_of, write_tokens

from knn_logits.errors import DatastoreError, MismatchError
from knn_logits.store import files, layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import begin
from knn_logits.store.writer import write_keys

DOCUMENTS = [[5, 6, 7, 8], [9], [10, 11, 12]]
PLAN = {"model": "a", "window": "8"}


class Stop(Exception):
    """What ends a job in the middle."""


@contextmanager
def refused(kind, message):
    """Checks that an error is one line, with a message that matches."""
    with pytest.raises(kind, match=message) as caught:
        yield
    one_line(caught)


def interrupted(folder, plan=PLAN, *, error=Stop, keys=True, kind="build", **settings):
    """A job that stopped after it had written tokens, and two shards of keys."""
    with suppress(error), begin(folder, kind, plan, **settings) as job:
        write_tokens(job, DOCUMENTS)
        if keys:
            with shards_of(16):
                write_keys(job, [np.ones((4, 4), np.float16)])
        raise error
    return job


# The folder


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "name", ["notes.txt", "keys-1.npy", "keys-000000.npy", "tokens.npy.bak", ".hidden"]
)
def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path, name, overwrite):
    (tmp_path / name).write_text("mine")
    (tmp_path / layout.TOKENS).write_text("x")
    before = contents(tmp_path)
    with (
        refused(DatastoreError, f"contains other files.*{name}"),
        begin(tmp_path, "build", {}, overwrite=overwrite),
    ):
        pass
    assert contents(tmp_path) == before


def test_an_existing_datastore_is_replaced_only_when_asked(tmp_path):
    store = make_store(tmp_path / "s", DOCUMENTS)
    before = contents(store.folder)
    message = r"already contains a datastore.*--overwrite"
    with refused(DatastoreError, message), begin(store.folder, "build", {}):
        pass
    assert contents(store.folder) == before
    with begin(store.folder, "build", {}, overwrite=True) as job:
        # The old one is there until the new one is whole.
        assert contents(store.folder).items() >= before.items()
        assert job.journal.generation == 1
        assert Datastore(store.folder).values.tolist() == store.values.tolist()


def test_a_new_datastore_takes_the_place_of_the_old_at_one_stroke(tmp_path):
    old = make_store(tmp_path / "s", DOCUMENTS)
    new = make_store(tmp_path / "s", [[1, 2, 3]])
    assert new.manifest.generation == 1
    assert names(new.folder) == [
        "checks.1.safetensors",
        layout.MANIFEST,
        "documents.1.jsonl",
        "keys.1-00000.npy",
        "tokens.1.npy",
    ]
    # What is open stays as it was.
    assert old.values.tolist() == [6, 7, 8, 11, 12]
    assert old.keys(np.arange(5)).shape == (5, 4)
    assert old.documents[0].title == "title 0"
    assert new.values.tolist() == [2, 3]
    assert make_store(tmp_path / "s", DOCUMENTS).manifest.generation == 2


# Going on


def test_an_interrupted_build_goes_on_and_says_so(tmp_path, caplog):
    interrupted(tmp_path)
    there = [layout.JOURNAL, layout.DOCUMENTS, "keys-00000.npy", "keys-00001.npy", layout.TOKENS]
    assert names(tmp_path) == sorted(there)
    with caplog.at_level(logging.WARNING, "knn_logits"), begin(tmp_path, "build", PLAN) as job:
        assert job.files
        assert [one.shape for one in job.shards] == [(2, 4), (2, 4)]
        assert [one.name for one in job.files][:2] == [layout.TOKENS, layout.DOCUMENTS]
    assert "continuing the unfinished build" in caplog.text
    assert "which has 4 keys" in caplog.text


def test_a_failed_job_without_keys_is_cleared_away(tmp_path):
    folder = tmp_path / "s"
    interrupted(folder, keys=False)
    assert not folder.exists()
    make_store(folder, DOCUMENTS)
    before = contents(folder)
    interrupted(folder, keys=False, overwrite=True)
    interrupted(folder, keys=False, kind="add")
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        ({"model": "b", "window": "8"}, "its model is a, and here it is b"),
        ({"model": "a", "window": "16"}, "its window is 8, and here it is 16"),
        ({"model": "a"}, "its window is 8, and here it is None"),
    ],
)
def test_a_job_under_another_plan_is_refused_naming_what_differs(tmp_path, plan, what):
    interrupted(tmp_path)
    before = contents(tmp_path)
    with refused(MismatchError, f"{what}.*--overwrite"), begin(tmp_path, "build", plan):
        pass
    assert contents(tmp_path) == before
    with begin(tmp_path, "build", plan, overwrite=True) as job:
        assert not job.files
        assert names(tmp_path) == [layout.JOURNAL]


def test_overwriting_gives_up_what_is_of_another_text(tmp_path):
    interrupted(tmp_path)
    with begin(tmp_path, "build", PLAN, overwrite=True) as job:
        assert len(job.shards) == 2
        write_tokens(job, DOCUMENTS)
        assert len(job.shards) == 2
        write_tokens(job, DOCUMENTS[:2])
        assert not job.shards
        assert names(tmp_path) == [layout.JOURNAL, layout.DOCUMENTS, layout.TOKENS]


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "link"])
@pytest.mark.parametrize("which", [0, 1])
def test_shards_that_are_not_as_noted_are_made_again(tmp_path, damage, which):
    interrupted(tmp_path)
    path = tmp_path / f"keys-0000{which}.npy"
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "changed":
        path.write_bytes(content[:-1] + b"x")
    elif damage == "link":
        (tmp_path / "tokens.9.npy").write_bytes(content)
        path.symlink_to(tmp_path / "tokens.9.npy")
    with begin(tmp_path, "build", PLAN) as job:
        assert len(job.shards) == which
        assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"kind": "build"}', b"[" * 10_000])
def test_a_damaged_journal_is_refused(tmp_path, content):
    interrupted(tmp_path)
    (tmp_path / layout.JOURNAL).write_bytes(content)
    with pytest.raises(MismatchError, match="--overwrite"), begin(tmp_path, "build", PLAN):
        pass
    assert "keys-00000.npy" in names(tmp_path)
    with begin(tmp_path, "build", PLAN, overwrite=True):
        assert names(tmp_path) == [layout.JOURNAL]


@pytest.mark.parametrize("name", ["../outside.npy", "/etc/passwd", "keys-00000.npy/../x"])
def test_a_journal_that_names_other_files_reaches_none(tmp_path, name):
    folder = tmp_path / "s"
    interrupted(folder)
    (tmp_path / "outside.npy").write_bytes((folder / "keys-00000.npy").read_bytes())
    path = folder / layout.JOURNAL
    path.write_text(path.read_text().replace("keys-00000.npy", name))
    with pytest.raises(DatastoreError), begin(folder, "build", PLAN) as job:
        raise DatastoreError(str(job.files))
    assert (tmp_path / "outside.npy").exists()


def test_another_kind_of_job_gives_up_an_unfinished_one(tmp_path, caplog):
    store = make_store(tmp_path / "s", DOCUMENTS)
    before = contents(store.folder)
    interrupted(store.folder, kind="add")
    assert "keys.1-00000.npy" in names(store.folder)
    with caplog.at_level(logging.WARNING), begin(store.folder, "compact", {}) as job:
        assert job.journal.generation == 1
        assert contents(store.folder).items() >= before.items()
        assert set(names(store.folder)) == {*before, layout.JOURNAL}
    assert "the unfinished add" in caplog.text


# The end


@pytest.mark.parametrize("left", [layout.JOURNAL, layout.TOKENS])
def test_an_end_that_could_not_be_cleared_up_is_an_end(tmp_path, monkeypatch, caplog, left):
    make_store(tmp_path / "s", DOCUMENTS)
    unlink = files.unlink

    def fails(path):
        if path.name == left:
            raise OSError(5, "Input/output error")
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "unlink", fails)
        store = make_store(tmp_path / "s", DOCUMENTS)
    assert "is finished, but old files are left" in caplog.text
    assert left in names(store.folder)
    with refused(DatastoreError, "already contains"), begin(store.folder, "build", {}):
        pass
    # The next job clears it up.
    with begin(store.folder, "add", {}) as job:
        job.give_up()
    assert left not in names(store.folder)


def test_a_manifest_that_cannot_be_read_now_is_no_reason_to_delete(tmp_path):
    make_store(tmp_path, DOCUMENTS)
    with suppress(Stop), begin(tmp_path, "add", {}):
        text = (tmp_path / layout.MANIFEST).read_bytes()
        (tmp_path / layout.MANIFEST).write_bytes(b"")
        raise Stop
    (tmp_path / layout.MANIFEST).write_bytes(text)
    assert len(Datastore(tmp_path)) == 5
