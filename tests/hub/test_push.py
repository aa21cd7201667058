"""Publishing: what is sent, that it comes back the same, and that a user's card survives."""

import shutil

import numpy as np
import pytest
from worker import NAME, OPEN, Failed, arrays_of

from knn_logits import Datastore, KNNLogitsProcessor, remove_documents
from knn_logits.building.removing import compact

pytest_plugins = ["hub_fixtures"]

PUSH = "done = knn_logits.push_to_hub(folder, name, **options)\nresult = done.commit"


def push(worker, folder, name=NAME, **options):
    return worker(f"options = {options!r}\n" + PUSH, folder=str(folder), name=name)


def head(hub, name=NAME, branch="main"):
    repo = hub.repos[name]
    return repo.commits[repo.branches[branch]]


def test_pushed_and_pulled_it_is_the_same(hub, owner, indexed, cache):
    commit = push(owner, indexed.folder)
    assert hub.repos[NAME].branches["main"] == commit
    folder = owner(OPEN + "store.fetch_keys()\nresult = str(store.folder)", name=NAME, cache=cache)
    pulled = Datastore(folder)
    assert pulled.manifest == indexed.manifest
    for key, array in arrays_of(indexed).items():
        np.testing.assert_array_equal(arrays_of(pulled)[key], array)


def test_without_keys_it_can_be_searched(hub, owner, indexed, cache, model, tokenizer):
    push(owner, indexed.folder, keys=False)
    assert not [one for one in head(hub) if one.startswith("keys")]
    folder = owner(OPEN + "result = str(store.folder)", name=NAME, cache=cache)
    light = Datastore(folder)
    assert not light.offers_keys
    inputs = tokenizer("When error code E42", return_tensors="pt")
    outputs, traces = [], []
    for store in (indexed, light):
        with KNNLogitsProcessor(model, store) as knn:
            output = model.generate(**inputs, logits_processor=[knn], max_new_tokens=8)
            outputs.append(output.tolist())
            traces.append(knn.trace(output, tokenizer))
    assert outputs[0] == outputs[1]
    mine, theirs = ([token.p for token in one[0].tokens] for one in traces)
    assert mine == theirs
    with pytest.raises(Failed, match=r"DatastoreError: .*no keys"):
        owner(OPEN + "store.fetch_keys()", name=NAME, cache=cache)


def test_an_index_made_of_keys_needs_them(hub, owner, store):
    with pytest.raises(Failed, match=r"ConfigError: the index exact .*knn-logits index"):
        push(owner, store.folder, keys=False)
    assert hub.repos == {}


def test_removed_documents_are_not_published(hub, owner, indexed, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(indexed.folder, folder)
    remove_documents(folder, ["3"])
    with pytest.raises(Failed, match=r"DatastoreError: .*1 removed documents.*knn-logits remove"):
        push(owner, folder)
    assert hub.repos == {}
    compact(folder)
    push(owner, folder)


def test_a_branch_and_a_private_repository(hub, owner, indexed, cache):
    push(owner, indexed.folder, private=True)
    assert hub.repos[NAME].private
    before = head(hub)
    push(owner, indexed.folder, name=f"{NAME}@light", keys=False)
    assert head(hub) == before
    code = OPEN + "result = store.offers_keys"
    assert owner(code, name=f"{NAME}@light", cache=cache) is False


def test_a_users_edits_of_the_card_survive(hub, owner, indexed):
    push(owner, indexed.folder)
    card = head(hub)["README.md"].decode()
    assert "`m`" not in card
    edited = card.replace("# texts\n", "# A better title\n\nWritten by hand.\n")
    edited = edited.replace("- knn-lm\n", "- harbour\n") + "\nThanks to the keeper.\n"
    edited = edited.replace("license: cc-by-sa-3.0", "license: cc-by-4.0\nlanguage: en")
    files = dict(head(hub))
    files["README.md"] = edited.encode()
    hub.repo(NAME).commit(files)
    push(owner, indexed.folder, keys=False)
    again = head(hub)["README.md"].decode()
    for kept in ("# A better title", "Written by hand.", "Thanks to the keeper.", "- harbour"):
        assert kept in again
    assert "license: cc-by-4.0" in again
    assert "language: en" in again
    assert "- knn-lm\n" not in again
    assert "- knn-logits\n" in again
    assert "no keys" in again
    assert again.count("from_pretrained(") == 1


def test_an_edit_during_a_push_is_not_overwritten(hub, owner, indexed):
    push(owner, indexed.folder)
    repo = hub.repo(NAME)
    code = (
        "from huggingface_hub import HfApi\n"
        "real = HfApi.create_commit\n"
        "def late(self, *args, **options):\n"
        "    options['parent_commit'] = 'f' * 40\n"
        "    return real(self, *args, **options)\n"
        "HfApi.create_commit = late\n"
        "try:\n"
        "    knn_logits.push_to_hub(folder, name, keys=False)\n"
        "finally:\n"
        "    HfApi.create_commit = real\n"
    )
    before = repo.branches["main"]
    with pytest.raises(Failed, match=r"HubError: .*412"):
        owner(code, folder=indexed.folder, name=NAME)
    assert repo.branches["main"] == before
