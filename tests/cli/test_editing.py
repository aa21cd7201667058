"""add, remove, verify, and several datastores, from the command line."""

import json

import pytest
from conftest import TEXTS

from knn_logits import Datastore


@pytest.fixture
def store(run, model_folder, tmp_path):
    (tmp_path / "old").mkdir()
    for number, text in enumerate(TEXTS[:5]):
        (tmp_path / "old" / f"d{number}.txt").write_text(text)
    run.good(
        "build", model_folder, tmp_path / "old", "--out", tmp_path / "store", "--k", 16,
        "--lmbda", 0.9, "--temperature", 0.5, "--window", 64, "--stride", 32,
    )  # fmt: skip
    return tmp_path / "store"


def test_what_is_left_is_counted_everywhere(run, store, model_folder, tmp_path):
    run.good("remove", store, "--document", "d1.txt")
    (tmp_path / "old" / "d1.txt").unlink()
    (tmp_path / "old" / "new.txt").write_text("A windmill stands on the hill above Oldenport.")
    added = run.good("add", model_folder, store, tmp_path / "old")
    left = len(Datastore(store)) - len(Datastore(store).removed_entries)
    assert "1 document added in" in added.out
    assert f"now {left:,} entries" in added.out
    assert "nothing was added" in run.good("add", model_folder, store, tmp_path / "old").out
    assert "5 unchanged" in run.good("sync", model_folder, store, tmp_path / "old").out


def test_sync(run, store, model_folder, tmp_path):
    folder = tmp_path / "old"
    (folder / "d1.txt").write_text("A windmill stands on the hill above Oldenport.")
    (folder / "d2.txt").unlink()
    (folder / "new.txt").write_text(TEXTS[6])
    result = run.good("sync", model_folder, store, folder)
    assert "1 added, 1 changed, 1 removed, 3 unchanged; keys of" in result.out
    again = run("sync", model_folder, store, folder)
    assert "0 added, 0 changed, 0 removed, 5 unchanged; keys of 0 tokens" in again.out


def test_sync_keeps_what_cannot_be_read(run, store, model_folder, tmp_path):
    folder = tmp_path / "old"
    (folder / "d1.txt").write_bytes(bytes(range(256)) * 20)
    (folder / "d2.txt").write_text("  ")
    result = run.good("sync", model_folder, store, folder)
    assert "0 changed, 1 removed, 3 unchanged" in result.out
    assert "2 skipped: " in result.out
    assert "d1.txt could not be read" in result.err
    assert run("info", store, "--documents", "--json").json["found"] == 4


def test_documents_are_listed(run, store):
    shown = run("info", store, "--documents").out.splitlines()
    assert len(shown) == 6
    assert "tokens  d0.txt" in shown[0]
    assert shown[-1].endswith("5 documents")
    found = run("info", store, "--documents", "--json").json
    assert [one["id"] for one in found["listed"]] == [f"d{number}.txt" for number in range(5)]
    assert found["listed"][0]["tokens"] > 10
    run("remove", store, "--document", "d0.txt")
    assert run("info", store, "--documents", "--json").json["found"] == 4


def test_remove_deletes_documents(run, store, model_folder):
    result = run.good("remove", store, "--document", "d0.txt", "--document", "d1.txt")
    assert "2 documents removed" in result.out
    assert "of 3 documents are left" in result.out
    assert Datastore(store).manifest.documents == 3
    tokens = run("generate", model_folder, store, "--prompt", "The harbour crane", "--json").json[
        "tokens"
    ]
    assert not {n["document"] for one in tokens for n in one["neighbors"]} & {"d0.txt", "d1.txt"}
    run.good("verify", store)


def test_remove_deletes_what_sync_has_removed(run, store, model_folder, tmp_path):
    (tmp_path / "old" / "d0.txt").unlink()
    assert "`knn-logits remove" in run.good("sync", model_folder, store, tmp_path / "old").out
    assert "`knn-logits remove` deletes them" in run("info", store).out
    assert "1 document removed" in run.good("remove", store).out
    assert "removed" not in run("info", store).out


def test_clusters_are_made_by_index(run, store):
    done = run.good("index", store, "--clusters", 3, "--suffixes")
    assert "suffix index of" in done.out
    assert "3 clusters" in done.out
    assert len(set(Datastore(store).clusters.tolist())) == 3
    assert (
        "--clusters keep the index"
        in run.refused("index", store, "--clusters", 3, "--nprobe", 2).err
    )


def test_verify_names_what_is_damaged(run, store):
    assert run("verify", store, "--json").json["ok"]
    path = store / "keys-00000.npy"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    result = run.refused("verify", store, "--json")
    content = json.loads(result.out.splitlines()[-1])
    assert not content["ok"]
    assert len(content["damaged"]) == 1
    assert "keys-00000.npy" in content["damaged"][0]
    opened = run.refused("info", store)
    assert "keys-00000.npy" in opened.line


def test_several_datastores(run, store, model_folder, tmp_path):
    (tmp_path / "other.txt").write_text(TEXTS[6])
    other = tmp_path / "other"
    run.good("build", model_folder, tmp_path / "other.txt", "--out", other)
    settings = ["--prompt", "The harbour", "--json", "--max-new-tokens", 12]
    result = run.good("generate", model_folder, store, other, *settings)
    assert {n["store"] for one in result.json["tokens"] for n in one["neighbors"]} <= {
        "store",
        "other",
    }
    explained = run("explain", model_folder, store, other, TEXTS[6], "--json").json
    named = {n["store"] for one in explained["tokens"] for n in one["neighbors"]}
    assert "other" in named
