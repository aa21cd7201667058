import numpy as np
import pytest

from knn_logits.errors import DamagedError
from knn_logits.index import plain_arrays
from knn_logits.index.choice import choose_factory
from knn_logits.index.demand import check_building, check_demand


@pytest.mark.parametrize("entries", [5_000, 200_000, 10**6, 10**9])
@pytest.mark.parametrize("dim", [64, 256, 768, 4096, 8192])
@pytest.mark.parametrize("memory", [None, 10**9, 10**12])
def test_what_the_package_chooses_is_never_too_much(entries, dim, memory):
    check_building(choose_factory(entries, dim, memory), dim, entries)


USED = ["Flat", "IVF4096,PQ64", "IVF1024,PQ16x12", "IVF1024,RaBitQ", "HNSW32", "HNSW32,SQ8"]


@pytest.mark.parametrize("factory", USED)
def test_what_people_use_is_not_too_much(factory):
    check_building(factory, 1024, 10**8)


ABSURD = [
    "nonsense",
    "IVF1000000000,Flat",
    "IVF" + "9" * 50 + ",Flat",
    "IVF1001,Flat",
    "IVF100(IVF100(Flat)),Flat",
    "IMI2x16,Flat",
    "IMI2x8,PQ8",
    "PQ9999999",
    "PQ8x24",
    "IVF4,PQ8x99",
    "OPQ64_100000000,IVF4,PQ64",
    "OPQ8_65000,PQ8x12",
    "PCA1000000,Flat",
    "Pad99999999,Flat",
    "HNSW100000000,Flat",
    "NSG1000000",
    "LSQ8x30",
    "HNSW0",
    "HNSW1,Flat",
    "HNSW03",
    "PQ0",
    "IVF0,Flat",
    "IVF4,Flat\n",
    "",
    ",",
    "Flat;",
    "RQ4x8",
    "IDMap,Flat",
    "RQ99999999x8",
    "Residual8x31",
    "Flat," * 40,
    "IVF\uff14,Flat",
]


@pytest.mark.parametrize("factory", ABSURD)
def test_what_no_index_of_this_size_can_need(factory):
    with pytest.raises(ValueError, match=r"."):
        check_demand(factory, 1024, 1000, 1000 * 1024)
    with pytest.raises(ValueError, match=r"."):
        check_building(factory, 1024, 1000)
    arrays = {"centroids": np.zeros(1000, np.float32)}
    with pytest.raises(DamagedError, match="is not a") as caught:
        plain_arrays.from_arrays(arrays, factory, 1024, "l2", 1000)
    assert "\n" not in str(caught.value)


# Factory string, length of a key, entries.
COSTLY = [
    ("IVF4,PQ256x12", 256, 5000),
    ("IVF100000,Flat", 256, 100_000),
    ("HNSW999", 32, 1000),
]


@pytest.mark.parametrize(("factory", "dim", "entries"), COSTLY)
def test_what_costs_far_more_than_its_keys_is_not_built(factory, dim, entries):
    """Some of them take gigabytes, others minutes, on a few keys."""
    with pytest.raises(ValueError, match=r"large|long|links|lists"):
        check_building(factory, dim, entries)


def test_codebooks_that_the_file_does_not_hold_are_not_made():
    learnt = 4 * 512 + (512 << 16)
    check_demand("IVF4,PQ4x16", 512, 4, learnt)
    with pytest.raises(ValueError, match="too large"):
        check_demand("IVF4,PQ4x16", 512, 4, learnt - 1)
    check_demand("IVF1048576,Flat", 1024, 10**8, 1024 << 20)
