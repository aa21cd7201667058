"""Kinds of index: which names there are, what they cost, and which is chosen."""

import numpy as np
import pytest

from knn_logits.errors import ConfigError, DamagedError
from knn_logits.index import plain_arrays
from knn_logits.index.faiss_library import build_faiss
from knn_logits.index.kinds import Kind, choose_factory

KEYS = np.random.default_rng(0).standard_normal((600, 32), dtype=np.float32)
PLENTY = 1 << 50


@pytest.mark.parametrize("factory", ["IVF8,Flat", "IVF8,SQ8", "IVF8,PQ8x4", "IVF8,RaBitQ"])
def test_the_size_of_an_index_is_counted_before_it_is_made(factory):
    index = build_faiss(factory, 32, "l2", KEYS, [KEYS])
    size = sum(array.nbytes for array in plain_arrays.to_arrays(index.raw).values())
    assert Kind(factory, 32, "l2").file_bytes(600) == pytest.approx(size, rel=0.03)
    assert Kind("exact", 32, "l2").file_bytes(600) == 0


@pytest.mark.parametrize(
    "factory",
    ["nonsense", "IVF1000000000,Flat", "IVF" + "9" * 50 + ",Flat", "IVF100(IVF100(Flat)),Flat",
     "IMI2x8,PQ8", "PQ8x24", "IVF4,PQ8x99", "IVF4,PQ8x13", "OPQ64_100000000,IVF4,PQ64",
     "PCA16,IVF8,SQ8", "HNSW32", "NSG1000000",
     "IVF0,Flat", "IVF4,Flat\n", "", ",", "IDMap,Flat", "Flat," * 40, "IVF\uff14,Flat"],
)  # fmt: skip
def test_a_name_that_may_end_the_process_is_unknown(factory):
    with pytest.raises(ConfigError, match="no index type") as caught:
        Kind(factory, 1024, "l2")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("factory", "centroids"), [("IVF1048576,Flat", 1000), ("IVF4,PQ4x12", 4), ("exact", 1)]
)
def test_lists_and_codebooks_that_the_file_does_not_hold_are_not_made(
    factory, centroids, monkeypatch
):
    made = []
    monkeypatch.setattr(plain_arrays, "make_empty", lambda *one: made.append(one))
    arrays = {"centroids": np.zeros(4 * 64 * centroids, np.uint8)}
    arrays["codebooks"] = np.zeros(8, np.float32)
    with pytest.raises(DamagedError, match="is not a"):
        plain_arrays.from_arrays(arrays, Kind(factory, 64, "l2"), 1000)
    assert not made


@pytest.mark.parametrize("codes", [64, 48, 32, 16, 8])
def test_product_codes_are_the_largest_that_fit(codes):
    entries, dim = 1_000_000, 768
    memory = 2 * entries * (codes + 8)
    assert choose_factory(entries, dim, memory) == f"IVF2048,PQ{codes}"
    assert choose_factory(entries, dim, memory - 2) != f"IVF2048,PQ{codes}"
    assert choose_factory(entries, 100, 2 * entries * 72).endswith("RaBitQ")
