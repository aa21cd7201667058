import numpy as np
import pytest
from folders import change, one_line, read_content, refit
from handmade import make_store

from knn_logits.errors import DamagedError
from knn_logits.store import files, layout, verification
from knn_logits.store.datastore import Datastore

DOCUMENTS = [[5, 6, 7, 8], [9], [10, 11, 12]]


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "s", DOCUMENTS, shard_bytes=16)


def refusal(folder):
    with pytest.raises(DamagedError) as caught:
        Datastore(folder)
    return one_line(caught)


def test_a_whole_datastore_has_no_damage_and_every_byte_is_counted(store):
    read = []
    assert verification.damage(store.folder, store.manifest, lambda *step: read.append(step)) == []
    total = sum(one.bytes for one in store.manifest.files)
    assert read[-1] == ("verifying", total, total)
    assert [done for _, done, _ in read] == sorted(done for _, done, _ in read)


def test_all_damage_is_named(store):
    for name in ("keys-00001.npy", layout.TOKENS):
        path = store.folder / name
        path.write_bytes(path.read_bytes()[:-1] + b"\x77")
    (store.folder / "keys-00000.npy").unlink()
    found = verification.damage(store.folder, store.manifest)
    assert len(found) == 3
    assert all("\n" not in one for one in found)
    assert any("is missing" in one for one in found)
    assert sum("SHA-256" in one for one in found) == 2


def test_every_bit_of_every_file_counts(store):
    for record in store.manifest.files:
        path = store.folder / record.name
        content = path.read_bytes()
        for place in range(0, len(content), 7):
            changed = bytearray(content)
            changed[place] ^= 1 << place % 8
            path.write_bytes(changed)
            assert verification.damage(store.folder, store.manifest), (record.name, place)
        path.write_bytes(content)
    assert not verification.damage(store.folder, store.manifest)


def test_large_keys_are_read_only_when_that_is_asked(store, monkeypatch):
    path = store.folder / "keys-00000.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x11")
    with pytest.raises(DamagedError, match="SHA-256"):
        Datastore(store.folder)
    monkeypatch.setattr(verification, "_READ_BYTES", 100)
    assert len(Datastore(store.folder)) == 5
    assert "SHA-256" in verification.damage(store.folder, store.manifest)[0]


# Files whose hashes fit


@pytest.mark.parametrize(
    ("wrong", "dtype", "place"),
    [
        (np.nan, "float16", (0, 0)),
        (np.inf, "float32", (299_999, 3)),
        (-np.inf, "float16", (150_000, 1)),
    ],
)
def test_keys_that_are_not_finite(tmp_path, wrong, dtype, place):
    tokens = [list(np.arange(300_001) % 100)]
    keys = np.ones((300_000, 4), dtype)
    folder = make_store(tmp_path / "s", tokens, keys, dtype=dtype).folder
    shards = sorted(folder.glob("keys-*.npy"))
    first = 0
    for path in shards:
        shard = np.load(path)
        if first <= place[0] < first + len(shard):
            shard[place[0] - first, place[1]] = wrong
            files.write_array(path, shard)
        first += len(shard)
    refit(folder)
    assert "not finite" in refusal(folder)


@pytest.mark.parametrize(("token", "vocabulary"), [(-1, 100), (100, 100), (2**31 - 1, None)])
def test_tokens_that_the_model_does_not_know(store, token, vocabulary):
    model = store.manifest.model.model_dump() | {"vocabulary": vocabulary}
    tokens = np.load(store.folder / layout.TOKENS)
    tokens[6] = token
    files.write_array(store.folder / layout.TOKENS, tokens)
    refit(store.folder, model=model)
    if vocabulary is None:
        assert Datastore(store.folder).values.max() == token
    else:
        assert f"the number {token}" in refusal(store.folder)


def test_keys_of_another_precision(store):
    change(store.folder, dtype="float32")
    assert "is damaged: holds float16" in refusal(store.folder)


def test_shards_of_another_length(store):
    path = store.folder / "keys-00000.npy"
    files.write_array(path, np.load(path)[:-1])
    refit(store.folder)
    assert "keys, but the manifest says 5" in refusal(store.folder)


# The canary


GOOD = {"canary.tokens": np.array([1, 2], np.int32), "canary.keys": np.zeros((2, 4), np.float32)}


def with_checks(folder, **arrays):
    changed = {name.replace("_", "."): one for name, one in arrays.items()}
    content = {**GOOD, **changed}
    content = {name: one for name, one in content.items() if one is not None}
    files.write_arrays(folder / layout.CHECKS, content, {})
    model = read_content(folder)["model"] | {"vocabulary": 100}
    refit(folder, model=model)


@pytest.mark.parametrize(
    "arrays",
    [
        {"canary_tokens": None},
        {"canary_tokens": np.array([1, 100], np.int32)},
        {"canary_tokens": np.array([1, -1], np.int32)},
        {"canary_tokens": np.array([1, 2], np.int64)},
        {"canary_tokens": np.array(1, np.int32)},
        {"canary_tokens": np.ones(10_000, np.int32), "canary_keys": np.ones((10_000, 4), "f4")},
        {"canary_keys": np.zeros((3, 4), np.float32)},
        {"canary_keys": np.full((2, 4), np.nan, np.float32)},
    ],
)
def test_a_canary_that_no_model_can_be_asked(store, arrays):
    with_checks(store.folder, **arrays)
    assert "does not fit" in refusal(store.folder)
