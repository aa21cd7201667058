"""Fetching a datastore: what comes, what stays away, and what a second opening asks."""

from pathlib import Path

import pytest
from loopback import PRIVATE_TOKEN
from worker import NAME, OPEN, Failed, content

import knn_logits
from knn_logits import Datastore

pytest_plugins = ["hub_fixtures"]

FACTS = "result = [str(store.folder), store.revision, store.has_keys, store.name]"


def test_keys_stay_on_the_hub_until_something_asks(published, worker, cache, indexed):
    folder, _, has_keys, _ = worker(OPEN + FACTS, name=NAME, cache=cache)
    assert not has_keys
    assert not list(Path(folder).glob("keys-*"))
    keys = sum(one.bytes for one in indexed.manifest.key_shards)
    whole = sum(one.stat().st_size for one in indexed.folder.iterdir())
    assert published.sent() == whole - keys - (indexed.folder / ".lock").stat().st_size
    # It can be searched and verified without them.
    code = OPEN + (
        "from knn_logits.search.retriever import Retriever\n"
        "import torch\n"
        "query = torch.zeros(1, store.manifest.dim)\n"
        "found = Retriever(store, knn_logits.KNNConfig(k=4)).search(query)\n"
        "before = store.has_keys\n"
        "Retriever(store, knn_logits.KNNConfig(k=4, refine=True))\n"
        "result = [found.ids.shape[1], before, store.has_keys]"
    )
    assert worker(code, name=NAME, cache=cache) == [4, False, True]
    assert published.sent(".npy") == keys + (indexed.folder / "tokens.npy").stat().st_size


def test_the_second_opening_fetches_nothing(published, worker, cache):
    worker(OPEN, name=NAME, cache=cache)
    published.requests.clear()
    worker(OPEN, name=NAME, cache=cache)
    assert [one["method"] for one in published.requests] == ["HEAD"]
    # A commit never changes, so there is nothing to ask.
    published.requests.clear()
    pinned = f"{NAME}@{published.repo(NAME).branches['main']}"
    assert worker(OPEN + "result = store.revision", name=pinned, cache=cache) in pinned
    assert published.requests == []


def test_without_asking_the_hub(published, worker, cache):
    local = "store = Datastore.from_pretrained(name, cache_dir=cache, local_files_only=True)\n"
    with pytest.raises(
        Failed,
        match=r"HubError: .*no folder here and not whole in this machine's cache.*HF_HUB_OFFLINE",
    ) as failed:
        worker(local, name=NAME, cache=cache)
    assert "\n" not in failed.value.message
    worker(OPEN, name=NAME, cache=cache)
    published.requests.clear()
    assert worker(local + FACTS, name=NAME, cache=cache)[3] == NAME
    with pytest.raises(Failed, match="not whole in this machine's cache"):
        worker(local + "store.fetch_keys()", name=NAME, cache=cache)
    assert published.requests == []


def test_a_revision_is_a_commit_a_branch_or_a_tag(published, worker, cache, store):
    first = published.repo(NAME).branches["main"]
    other = published.repo(NAME).commit(content(store.folder), "other")
    code = OPEN + "result = [store.revision, len(store)]"
    assert worker(code, name=f"{NAME}@other", cache=cache) == [other, len(store)]
    assert worker(code, name=f"{NAME}@{first}", cache=cache)[0] == first


def test_a_folder_wins_over_the_hub(published, worker, cache, store, tmp_path):
    code = "import os\nback = os.getcwd()\nos.chdir(place)\n"
    code += OPEN + "result = [store.revision, len(store)]\nos.chdir(back)"
    there = tmp_path / NAME
    there.parent.mkdir()
    there.symlink_to(store.folder)
    assert worker(code, name=NAME, cache=cache, place=tmp_path) == [None, len(store)]
    assert published.requests == []


def test_a_private_datastore(published, worker, owner, cache):
    published.repo(NAME).private = True
    with pytest.raises(Failed, match=r"HubError: .*private.*hf auth login"):
        worker(OPEN, name=NAME, cache=cache)
    assert owner(OPEN + FACTS, name=NAME, cache=cache)[3] == NAME
    given = "result = len(Datastore.from_pretrained(name, cache_dir=cache, token=token))"
    clean = cache.with_name("clean")
    assert worker(given, name=NAME, cache=clean, token=PRIVATE_TOKEN) > 0


def test_a_download_is_not_changed(published, worker, cache):
    code = OPEN + "knn_logits.remove_documents(store, ['0'])"
    with pytest.raises(Failed, match=r"DatastoreError: .*download of org/texts.*--out FOLDER"):
        worker(code, name=NAME, cache=cache)


def test_a_copy_can_be_changed(published, worker, indexed, tmp_path):
    code = "result = str(knn_logits.pull(name, keys=True, out=out).folder)"
    folder = worker(code, name=NAME, out=tmp_path / "copy")
    assert Datastore(folder).manifest == indexed.manifest
    assert knn_logits.remove_documents(folder, ["0"]).manifest.removed == (0,)
    with pytest.raises(Failed, match=r"DatastoreError: .*choose an empty folder"):
        worker(code, name=NAME, out=folder)
    # What an interrupted copy left is replaced.
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "tokens.npy").write_bytes(b"half")
    assert not Datastore(
        worker(
            "result = str(knn_logits.pull(name, out=out).folder)", name=NAME, out=tmp_path / "half"
        )
    ).has_keys
