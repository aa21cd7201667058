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


def test_add(run, store, model_folder, tmp_path):
    (tmp_path / "new.txt").write_text("A windmill stands on the hill above Oldenport.")
    before = Datastore(store).manifest
    result = run.good("add", model_folder, store, tmp_path / "new.txt", "--json")
    content = result.json
    assert content["documents"] == 6 == before.documents + content["added_documents"]
    assert content["entries"] > before.entries
    text = run("generate", model_folder, store, "--prompt", "A windmill stands", "--json").json[
        "text"
    ]
    assert text.startswith(" on the hill above Oldenport.")


def test_what_is_left_is_counted_everywhere(run, store, model_folder, tmp_path):
    removed = run("remove", store, "--document", "d1.txt", "--json").json
    (tmp_path / "old" / "d1.txt").unlink()
    (tmp_path / "old" / "new.txt").write_text("A windmill stands on the hill above Oldenport.")
    added = run("add", model_folder, store, tmp_path / "old", "--json").json
    assert added["documents"] == removed["documents"] + 1 == 5
    assert added["entries"] == len(Datastore(store)) - len(Datastore(store).removed_entries)
    again = run("add", model_folder, store, tmp_path / "old", "--json").json
    synced = run("sync", model_folder, store, tmp_path / "old", "--json").json
    for name in ("entries", "documents"):
        assert again[name] == synced[name] == added[name]


def test_sync(run, store, model_folder, tmp_path):
    folder = tmp_path / "old"
    (folder / "d1.txt").write_text("A windmill stands on the hill above Oldenport.")
    (folder / "d2.txt").unlink()
    (folder / "new.txt").write_text(TEXTS[6])
    expected = {"added": 1, "changed": 1, "removed": 1, "unchanged": 3, "kept": 0}
    result = run.good("sync", model_folder, store, folder, "--json")
    assert result.json.items() >= expected.items()
    assert (result.json["documents"], len(result.out.splitlines())) == (5, 1)
    again = run("sync", model_folder, store, folder)
    assert "0 added, 0 changed, 0 removed, 5 unchanged; keys of 0 tokens" in again.out


def test_sync_keeps_what_cannot_be_read(run, store, model_folder, tmp_path):
    folder = tmp_path / "old"
    (folder / "d1.txt").write_bytes(bytes(range(256)) * 20)
    (folder / "d2.txt").write_text("  ")
    result = run.good("sync", model_folder, store, folder, "--json")
    assert (result.json["removed"], result.json["kept"], result.json["skipped"]) == (1, 1, 2)
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
    whole = Datastore(store).manifest
    result = run.good("remove", store, "--document", "d0.txt", "--document", "d1.txt", "--json")
    assert result.json["documents"] == 3
    assert result.json["entries"] < whole.entries
    assert result.json["removed"] == 2
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
    done = run.good("remove", store, "--json").json
    assert (done["documents"], done["removed"]) == (4, 1)
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
    one_side = run("generate", model_folder, store, other, *settings, "--weights", "0,1").json
    assert {n["store"] for one in one_side["tokens"] for n in one["neighbors"]} == {"other"}
    explained = run("explain", model_folder, store, other, TEXTS[6], "--json").json
    named = {n["store"] for one in explained["tokens"] for n in one["neighbors"]}
    assert "other" in named
