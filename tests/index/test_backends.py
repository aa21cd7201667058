import numpy as np
import pytest

from knn_logits.errors import DatastoreError
from knn_logits.index.backend import Backend, Keys
from knn_logits.index.backends import BACKENDS, backend, backend_kind, usual_kinds
from knn_logits.settings.config import IndexConfig

KEYS = np.random.default_rng(0).standard_normal((600, 32), dtype=np.float32)
FACTORIES = ["exact", "Flat", "IVF8,Flat", "IVF8,SQ8", "IVF8,PQ8x4", "PCA16,IVF8,SQ8", "SQ8"]


def built(factory, metric="l2", keys=KEYS, **settings):
    source = Keys(len(keys), lambda: [keys[:100], keys[100:]], lambda size: keys[:size])
    kind = backend(factory, keys.shape[1], metric)
    return kind.build(source, IndexConfig(factory, **settings), None, "cpu")


def test_each_factory_string_has_one_backend():
    assert [backend_kind(factory).approximate for factory in FACTORIES] == [False] + [True] * 6
    assert issubclass(BACKENDS[-1], Backend)
    assert BACKENDS[-1].takes("anything")
    assert usual_kinds(50_000, 32)[0] == "exact"


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_size_of_an_index_is_counted_before_it_is_made(factory):
    kind = backend(factory, 32, "l2")
    arrays = kind.to_arrays(built(factory))
    assert kind.has_arrays == (arrays is not None)
    assert (arrays is None) == (factory in ("exact", "SQ8"))
    assert kind.leaves_out == (factory not in ("Flat", "SQ8"))
    size = sum(array.nbytes for array in (arrays or {}).values())
    assert kind.file_bytes(600, native=False) == pytest.approx(size, rel=0.03)
    if "IVF8," in factory and "PCA" not in factory:
        assert kind.array_bytes(600) == pytest.approx(size, rel=0.03)
        assert kind.making_bytes(600, None) > 2 * size


def test_an_exact_index_holds_its_keys_in_float32():
    kind = backend("exact", 32, "l2")
    assert kind.file_bytes(10**6, native=True) == 0
    assert kind.array_bytes(600) == 600 * 4 * 33
    with pytest.raises(DatastoreError, match="not stored as arrays"):
        kind.from_arrays({}, 0)


def test_learning_may_take_more_memory_than_the_index():
    kind = backend("IVF65536,RaBitQ", 4096, "l2")
    assert kind.making_bytes(10**9, None) > 2 * 4 * 4096 * 64 * 65536
    assert kind.making_bytes(10**9, 1000) < 2 * kind.array_bytes(10**9) + 10**10


def test_a_gpu_takes_only_some_kinds():
    kinds = ("IVF64,RaBitQ", "HNSW32", "exact", "IVF64,SQ8", "IVF64,PQ8", "IVF64,Flat")
    sizes = [backend(factory, 32, "l2").gpu_bytes(10_000) for factory in kinds]
    assert sizes[:2] == [None, None]
    assert min(sizes[2:]) >= 10_000 * 8


def test_queries_take_longer_in_longer_lists_and_for_more_lists():
    def seconds(entries, nprobe, metric="l2", lists=64):
        kind = backend(f"IVF{lists},SQ8", 32, metric)
        [spent] = kind.query_seconds(entries, 16, [8], nprobe)
        return spent

    assert seconds(10**6, 8) > 3 * seconds(10**4, 8)
    assert seconds(10**6, 32) > seconds(10**6, 1)
    # Lists that are too long for the small index are scaled, and so are lists that are too many.
    assert seconds(10**10, 8) > 100 * seconds(10**7, 8)
    assert seconds(10**5, 1, "ip", 1 << 16) > 3 * seconds(10**5, 1, "ip", 1 << 10)


def test_kinds_without_a_rule_get_no_time():
    assert backend("HNSW32", 32, "l2").query_seconds(1000, 4, [1], None) is None
    exact = backend("exact", 32, "cosine").query_seconds(1000, 4, [1, 8], None)
    assert len(exact) == 2
    assert min(exact) > 0.0
