"""Work that is spread in pieces, without a cluster: the bytes of one machine."""

import numpy as np
import pytest

from knn_logits.building.spread import FillWorker, KeyWorker, cut
from knn_logits.engine import keys as key_module
from knn_logits.engine.compatibility import CANARY_KEYS
from knn_logits.engine.keys import compute_keys, grouped
from knn_logits.engine.location import find_key
from knn_logits.engine.windows import plan
from knn_logits.errors import MismatchError
from knn_logits.index import plain_arrays
from knn_logits.index.faiss_backend import build_faiss

DIM, PART = 32, 150
KINDS = [
    "IVF16,Flat",
    "IVF16,SQ8",
    "IVF16,PQ8x4",
    "IVF16,RaBitQ",
    "PCA16,IVF8,SQ8",
    "OPQ8_16,IVF8,PQ8x4",
]


@pytest.fixture(scope="module")
def keys():
    return np.random.default_rng(0).normal(size=(1000, DIM)).astype(np.float32)


def in_parts(keys):
    return iter([keys[first : first + PART] for first in range(0, len(keys), PART)])


def filling_of(index, factory, metric, sample):
    return plain_arrays.to_arrays(index), (factory, DIM, metric), 1, sample


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("factory", KINDS)
def test_parts_give_the_bytes_of_the_whole(keys, factory, metric):
    whole = build_faiss(factory, DIM, metric, keys, in_parts(keys), 1)
    sizes = []

    def fill(index, name, batches):
        filling = filling_of(index, name, metric, keys[:64])
        expected = FillWorker(*filling, {}).work(keys[:64])
        worker = FillWorker(*filling, expected)
        assert worker.ready()
        for batch in batches:
            plain_arrays.append(index, worker.work(batch))
            sizes.append(index.size)

    filled = build_faiss(factory, DIM, metric, keys, in_parts(keys), 1, fill)
    assert sizes == [*range(PART, len(keys), PART), len(keys)]
    expected, found = plain_arrays.to_arrays(whole), plain_arrays.to_arrays(filled)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert array.tobytes() == found[name].tobytes(), name
    assert filled.size == len(keys)


def test_a_worker_with_other_lists_is_refused(keys):
    index = build_faiss("IVF16,SQ8", DIM, "l2", keys, iter([]), 1)
    filling = filling_of(index, "IVF16,SQ8", "l2", keys[:64])
    other = FillWorker(*filling, {}).work(-keys[:64])
    with pytest.raises(MismatchError, match="different lists"):
        FillWorker(*filling, other).ready()


def test_a_worker_that_rounds_in_another_way_says_so(keys):
    index = build_faiss("IVF16,SQ8", DIM, "l2", keys, iter([]), 1)
    filling = filling_of(index, "IVF16,SQ8", "l2", keys[:64])
    near = FillWorker(*filling, {}).work(keys[:64])
    near["codes"] = near["codes"].copy()
    near["codes"][0, 0] ^= 1
    assert not FillWorker(*filling, near).ready()


@pytest.mark.parametrize("first_entry", [0, 10, 30])
def test_pieces_give_the_same_keys_as_one_machine(model, store, first_entry, monkeypatch):
    monkeypatch.setattr(key_module, "_BUFFER_BYTES", 1)  # many groups
    location = find_key(model, "ffn_input")
    tokens, contexts = np.asarray(store.tokens), store.contexts
    windows = list(plan(contexts.first, contexts.length, 64, 32))
    shape = {"dim": 32, "dtype": "float16", "batch_tokens": 32}
    whole = compute_keys(model, location, tokens, windows, first_entry=first_entry, **shape)
    worker = KeyWorker(model, location, shape, 1, store.checks)
    assert worker.ready()
    pieces = list(cut(tokens, grouped(windows, **shape), first_entry))
    assert len(pieces) > 2
    found = [worker.work(piece)[before:] for before, piece in pieces]
    assert np.concatenate(found).tobytes() == np.concatenate(list(whole)).tobytes()


def test_a_worker_that_computes_other_keys_is_refused(model, store):
    location = find_key(model, "ffn_input")
    other = {CANARY_KEYS: store.checks[CANARY_KEYS] + 0.5}
    worker = KeyWorker(model, location, {}, 1, store.checks | other)
    with pytest.raises(MismatchError, match="computes other keys"):
        worker.ready()
