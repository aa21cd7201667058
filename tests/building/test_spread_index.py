"""An index that is filled in parts, without a cluster: the bytes of one that is filled at once."""

import numpy as np
import pytest

from knn_logits.building.spread import FillTask, FillWorker
from knn_logits.errors import MismatchError
from knn_logits.index import plain
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
    return FillTask(factory, DIM, metric, plain.to_arrays(index), 1, sample)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("factory", KINDS)
def test_parts_give_the_bytes_of_the_whole(keys, factory, metric):
    whole = build_faiss(factory, DIM, metric, keys, in_parts(keys), 1)
    sizes = []

    def fill(index, name, batches):
        filling = filling_of(index, name, metric, keys[:64])
        expected = FillWorker(filling, {}).work(keys[:64])
        worker = FillWorker(filling, expected)
        assert worker.ready()
        for batch in batches:
            plain.append(index, worker.work(batch))
            sizes.append(index.size)

    filled = build_faiss(factory, DIM, metric, keys, in_parts(keys), 1, fill)
    assert sizes == [*range(PART, len(keys), PART), len(keys)]
    expected, found = plain.to_arrays(whole), plain.to_arrays(filled)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert array.tobytes() == found[name].tobytes(), name
    assert filled.size == len(keys)


def test_a_worker_with_other_lists_is_refused(keys):
    index = build_faiss("IVF16,SQ8", DIM, "l2", keys, iter([]), 1)
    filling = filling_of(index, "IVF16,SQ8", "l2", keys[:64])
    other = FillWorker(filling, {}).work(-keys[:64])
    with pytest.raises(MismatchError, match="other lists"):
        FillWorker(filling, other).ready()


def test_a_worker_that_rounds_in_another_way_says_so(keys):
    index = build_faiss("IVF16,SQ8", DIM, "l2", keys, iter([]), 1)
    filling = filling_of(index, "IVF16,SQ8", "l2", keys[:64])
    near = FillWorker(filling, {}).work(keys[:64])
    near["codes"] = near["codes"].copy()
    near["codes"][0, 0] ^= 1
    assert not FillWorker(filling, near).ready()
