"""The suffix index as a file of the datastore: made, kept, refused where it is not the text's."""

import shutil

import numpy as np
import pytest
from conftest import TEXTS
from folders import change, hashes, one_line, read_content, refit

import knn_logits
from knn_logits import DamagedError, Datastore
from knn_logits.building.indexing import build_suffixes
from knn_logits.store import files
from knn_logits.store.suffixes import is_suffix_order, suffix_order


@pytest.fixture
def folder(store, tmp_path):
    return shutil.copytree(store.folder, tmp_path / "store")


def is_whole(store):
    Datastore(store.folder, full=True)
    return is_suffix_order(store.tokens, store.documents.first, store.suffixes)


def test_four_bytes_a_token(folder):
    before = hashes(folder)
    told = []
    store = build_suffixes(folder, progress=lambda *one: told.append(one))
    record = store.manifest.file("suffixes")
    assert record.dtype == "uint32"
    assert record.bytes <= 4 * store.manifest.tokens + 128
    assert is_whole(store)
    assert told
    after = hashes(folder)
    assert set(after) - set(before) == {record.name}
    assert {name for name in before if before[name] != after[name]} == {"datastore.json"}
    assert hashes(build_suffixes(folder).folder) == after


def test_it_goes_with_documents_that_come_and_go(model, tokenizer, folder):
    build_suffixes(folder)
    store = knn_logits.add_documents(model, tokenizer, folder, ["A new crane lifts crates."])
    assert len(store.suffixes) == store.manifest.tokens - store.manifest.documents
    assert is_whole(store)
    removed = knn_logits.remove_documents(folder, ["2", "5"])
    assert is_whole(removed)
    compacted = knn_logits.compact(folder)
    assert len(compacted.suffixes) < len(store.suffixes)
    assert is_whole(compacted)
    kept = [knn_logits.Document(text, str(number)) for number, text in enumerate(TEXTS[3:], 3)]
    synced = knn_logits.sync_documents(model, tokenizer, folder, kept).datastore
    assert is_whole(synced)
    assert is_whole(knn_logits.build_index(folder, knn_logits.IndexConfig("exact", "cosine")))


def test_none_stays_none(model, tokenizer, folder):
    assert knn_logits.add_documents(model, tokenizer, folder, ["More text."]).suffixes is None
    with pytest.raises(knn_logits.DatastoreError, match=r"knn-logits index .* --suffixes"):
        knn_logits.Memory(model, folder, infini_gram="auto")


@pytest.mark.parametrize("seed", range(12))
def test_hostile_arrays_are_refused(folder, seed):
    store = build_suffixes(folder)
    random = np.random.default_rng(seed)
    name, order = store.manifest.file("suffixes").name, np.array(store.suffixes)
    wrong = {
        0: lambda: random.permutation(order),
        1: lambda: np.where(random.random(len(order)) < 0.01, 2**32 - 1, order).astype(np.uint32),
        2: lambda: np.full_like(order, order[0]),
        3: lambda: np.zeros_like(order),
        4: lambda: order[:-1],
        5: lambda: order.astype(np.int32),
        6: lambda: order.astype(np.float32),
        7: lambda: order.reshape(1, -1),
        8: lambda: order.astype(np.uint64),
        9: lambda: order[::-1],
        10: lambda: np.append(order, order),
        11: lambda: order[:0],
    }[seed]()
    assert not np.array_equal(wrong, order) or wrong.dtype != order.dtype
    files.write_array(folder / name, wrong)
    refit(folder)
    with pytest.raises(DamagedError) as caught:
        Datastore(folder)
    assert "suffixes" in one_line(caught)


def test_an_index_of_other_text_is_refused(folder):
    store = build_suffixes(folder)
    other = np.array(store.tokens)[::-1].copy()
    files.write_array(folder / store.manifest.file("suffixes").name,
                      suffix_order(other, store.documents.first))  # fmt: skip
    refit(folder)
    with pytest.raises(DamagedError, match="--suffixes"):
        Datastore(folder)


@pytest.mark.parametrize(
    "record",
    [
        {"lengths": [], "shares": []},
        {"lengths": [2], "shares": [0.5]},
        {"lengths": [1, 3, 2], "shares": [0.1, 0.2, 0.3]},
        {"lengths": [1, 2], "shares": [0.5]},
        {"lengths": [1], "shares": [1.5]},
        {"lengths": [1], "shares": [-0.1]},
        {"lengths": [1, 2**70], "shares": [0.1, 0.2]},
        {"lengths": [1], "shares": ["much"]},
    ],
)
def test_hostile_shares_are_refused(folder, record):
    change(folder, infini_gram=record)
    with pytest.raises(DamagedError) as caught:
        Datastore(folder)
    one_line(caught)


def test_the_manifest_of_old_is_unchanged(folder):
    assert "infini_gram" not in read_content(folder)
