"""Stamps: what was verified on this machine is opened quickly, and only that."""

import json
import os
import shutil
import time

import pytest
from folders import contents
from handmade import make_store

from knn_logits.errors import DamagedError
from knn_logits.store import layout, verification
from knn_logits.store.datastore import Datastore

DOCUMENTS = [[5, 6, 7, 8], [9], [10, 11, 12]]
STAMPED = [layout.TOKENS, layout.DOCUMENTS, layout.CHECKS, "keys-00000.npy"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KNN_LOGITS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path, cache):
    """A datastore that nobody has opened since its files became old enough for a stamp."""
    folder = make_store(tmp_path / "s", DOCUMENTS).folder
    shutil.rmtree(cache, ignore_errors=True)
    newest = max(path.stat().st_ctime_ns for path in folder.iterdir())
    while time.time_ns() - newest < 2 * verification.TICK_NS:
        time.sleep(0.01)
    return folder


@pytest.fixture
def read(monkeypatch):
    """Counts how often every byte was read."""
    calls = []
    damage = verification.damage

    def counted(folder, manifest, *arguments):
        calls.append(folder)
        return damage(folder, manifest, *arguments)

    monkeypatch.setattr(verification, "damage", counted)
    return calls


def test_the_second_opening_reads_nothing_again(folder, cache, read):
    for _ in range(3):
        Datastore(folder)
    assert len(read) == 1
    assert len(list(cache.rglob("*.json"))) == 1
    assert sorted(contents(folder)) == sorted([*STAMPED, layout.MANIFEST])


def keep_times(path, write):
    state = path.stat()
    write()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("name", STAMPED)
@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_damage_is_found_though_size_and_time_are_as_before(folder, name, how):
    Datastore(folder)
    path = folder / name
    content = bytearray(path.read_bytes())
    content[-3] ^= 1

    def write():
        if how == "replaced":
            other = path.with_name("other")
            other.write_bytes(content)
            other.rename(path)
        else:
            path.write_bytes(content)

    keep_times(path, write)
    with pytest.raises(DamagedError, match="SHA-256"):
        Datastore(folder)


def touch(folder, stamp):
    os.utime(folder / layout.TOKENS)


def license(folder, stamp):
    Datastore(folder).manifest.model_copy(update={"license": "CC0"}).write(folder)


def forge(folder, stamp):
    """Puts the stamp into the datastore's own folder, where its publisher could."""
    (folder / layout.TOKENS).write_bytes((folder / layout.TOKENS).read_bytes())
    for place in (folder / "verified", folder / "knn-logits" / "verified", folder):
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(stamp, place / stamp.name)


def fewer_files(folder, stamp):
    content = json.loads(stamp.read_text())
    del content["files"][layout.TOKENS]
    stamp.write_text(json.dumps(content))


DAMAGED = ["", "{", "[]", "null", '{"checksum": 5}', "[" * 100_000, "9" * 5000]


@pytest.mark.parametrize("change", [touch, license, forge, fewer_files, *DAMAGED])
def test_after_a_change_every_byte_is_read_again(folder, cache, read, change):
    Datastore(folder)
    (stamp,) = cache.rglob("*.json")
    stamp.write_text(change) if isinstance(change, str) else change(folder, stamp)
    Datastore(folder)
    assert len(read) == 2


def test_files_that_are_still_warm_get_no_stamp(tmp_path, cache, read):
    """A later change within the same tick of the file system's clock could not be seen."""
    folder = make_store(tmp_path / "s", DOCUMENTS).folder
    shutil.rmtree(cache, ignore_errors=True)
    future = time.time_ns() + 10**12
    os.utime(folder / layout.TOKENS, ns=(future, future))
    Datastore(folder)
    assert not cache.exists()


@pytest.mark.parametrize("kind", ["file", "below a file", "folder in the stamp's place"])
def test_a_cache_that_cannot_be_written_is_no_error(folder, cache, read, monkeypatch, kind):
    if kind == "folder in the stamp's place":
        verification.stamp_path(folder).mkdir(parents=True)
    else:
        cache.write_text("mine")
    if kind == "below a file":
        monkeypatch.setenv("KNN_LOGITS_CACHE", str(cache / "sub"))
    for _ in range(2):
        assert len(Datastore(folder)) == 5
    assert len(read) == 2
