import functools

import numpy as np
import pytest
import torch

from knn_logits.errors import DamagedError
from knn_logits.index.faiss_library import build_faiss
from knn_logits.index.kinds import Kind
from knn_logits.index.plain_arrays import from_arrays, to_arrays

METRICS = ["l2", "ip", "cosine"]
LISTS = ["IVF16,Flat", "IVF16,SQ8", "IVF16,PQ4x4", "IVF16,RaBitQ"]
DIM, SIZE = 16, 500


def vectors(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, DIM)).astype(np.float32)


@functools.cache
def build(factory, metric="l2", rows=SIZE):
    keys = vectors(SIZE)[:rows]
    return build_faiss(factory, DIM, metric, vectors(SIZE), [keys], threads=1)


def assert_same_answers(one, other, nprobes=(1, 5, 16)):
    queries = torch.from_numpy(vectors(20, seed=1))
    for nprobe in nprobes:
        one.nprobe = other.nprobe = nprobe
        for k in (1, 10, 200, SIZE):
            found, again = one.search(queries, k), other.search(queries, k)
            assert torch.equal(found[1], again[1])
            assert torch.equal(found[0], again[0])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factory", LISTS)
def test_an_index_made_again_answers_bit_for_bit(factory, metric):
    index = build(factory, metric)
    arrays = to_arrays(index.raw)
    # As from a file: nothing of the first index may be shared.
    arrays = {name: array.copy() for name, array in arrays.items()}
    again = from_arrays(arrays, Kind(factory, DIM, metric), SIZE, nprobe=3)
    assert (again.size, again.dim, again.metric) == (SIZE, DIM, metric)
    assert again.nprobe == 3
    assert_same_answers(index, again)
    for name, array in to_arrays(again.raw).items():
        assert np.array_equal(array, arrays[name])
        assert array.dtype == arrays[name].dtype


def damaged(factory, arrays, metric="l2", size=SIZE, dim=DIM):
    with pytest.raises(DamagedError) as caught:
        from_arrays(arrays, Kind(factory, dim, metric), size)
    text = str(caught.value)
    assert "\n" not in text
    assert repr(factory) in text
    assert "knn-logits index" in text
    return text


EACH_ARRAY = [(factory, name) for factory in LISTS for name in to_arrays(build(factory).raw)]


@pytest.mark.parametrize(("factory", "name"), EACH_ARRAY)
def test_an_array_that_is_missing_or_of_another_size_or_type(factory, name):
    arrays = to_arrays(build(factory).raw)
    array = arrays.pop(name)
    assert name in damaged(factory, arrays)
    wrong = [array[:-1], np.concatenate([array, array[-1:]]), array[:0]]
    if array.ndim > 1:
        wrong += [array[:, :-1], array.reshape(-1)]
    wrong += [array.astype(dtype) for dtype in (np.int8, np.float64, np.int32, np.float16)]
    for one in wrong:
        damaged(factory, arrays | {name: one})


@pytest.mark.parametrize("number", [-1, SIZE, 2**40, 2**62, -(2**63)])
def test_ids_out_of_range(number):
    arrays = to_arrays(build("IVF16,SQ8").raw)
    ids = arrays["ids"].copy()
    ids[7] = number
    assert "ids" in damaged("IVF16,SQ8", arrays | {"ids": ids})


NOT_FINITE = [
    ("IVF16,Flat", "codes"),
    ("IVF16,SQ8", "centroids"),
    ("IVF16,SQ8", "trained"),
    ("IVF16,PQ4x4", "codebooks"),
]


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize(("factory", "name"), NOT_FINITE)
def test_numbers_that_are_not_finite(factory, name, number):
    arrays = to_arrays(build(factory).raw)
    array = arrays[name].copy()
    array.reshape(-1).view(np.float32)[3] = number
    assert "not finite" in damaged(factory, arrays | {name: array})


def test_no_large_table_of_all_lists_and_codes_is_made():
    """It would take gigabytes of some files of one megabyte."""
    size = 10
    arrays = {
        "centroids": vectors(4000).view(np.uint8).reshape(-1),
        "codebooks": vectors(4096).reshape(-1),
        "sizes": np.bincount(np.arange(size), minlength=4000),
        "ids": np.arange(size),
        "codes": np.zeros((size, 24), np.uint8),
    }
    index = from_arrays(arrays, Kind("IVF4000,PQ16x12", DIM, "l2"), size)
    assert index.raw.precomputed_table.size() == 0
    assert index.search(torch.zeros(1, DIM), 5)[1].shape == (1, 5)


def test_list_sizes_that_do_not_add_up():
    arrays = to_arrays(build("IVF16,SQ8").raw)
    sizes = arrays["sizes"]
    negative, more = sizes.copy(), sizes.copy()
    negative[0], negative[1] = -1, sizes[0] + sizes[1] + 1
    more[0] += 1
    # Sums of int64 wrap around: these add up to the right number.
    wrapped = np.zeros_like(sizes)
    wrapped[:4] = 2**62
    wrapped[4] = SIZE
    assert int(wrapped.sum()) == SIZE
    for one in (negative, more, wrapped, np.zeros_like(sizes)):
        assert "list sizes" in damaged("IVF16,SQ8", arrays | {"sizes": one})
