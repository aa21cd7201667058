import numpy as np
import pytest

from knn_logits.errors import DatastoreError
from knn_logits.index.backend import Backend, Keys
from knn_logits.index.backends import BACKENDS, backend, backend_kind
from knn_logits.settings.config import IndexConfig

KEYS = np.random.default_rng(0).standard_normal((600, 32), dtype=np.float32)
FACTORIES = ["exact", "Flat", "IVF8,Flat", "IVF8,SQ8", "IVF8,PQ8x4", "HNSW8,SQ8", "HNSW8"]


def built(factory, metric="l2", keys=KEYS, **settings):
    source = Keys(len(keys), lambda: [keys[:100], keys[100:]], lambda size: keys[:size])
    kind = backend(factory, keys.shape[1], metric)
    return kind.build(source, IndexConfig(factory, **settings), None, "cpu")


def test_each_factory_string_has_one_backend():
    assert [backend_kind(factory).approximate for factory in FACTORIES] == [False] + [True] * 6
    assert issubclass(BACKENDS[-1], Backend)
    assert not BACKENDS[-1].takes("PCA16,IVF8,SQ8")


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_size_of_an_index_is_counted_before_it_is_made(factory):
    kind = backend(factory, 32, "l2")
    arrays = kind.to_arrays(built(factory))
    assert kind.has_arrays == (arrays is not None)
    assert (arrays is None) == (factory in ("exact", "HNSW8,SQ8", "HNSW8"))
    size = sum(array.nbytes for array in (arrays or {}).values())
    assert kind.file_bytes(600) == pytest.approx(size, rel=0.03)


def test_an_exact_index_has_no_file():
    kind = backend("exact", 32, "l2")
    assert kind.file_bytes(10**6) == 0
    with pytest.raises(DatastoreError, match="not stored as arrays"):
        kind.from_arrays({}, 0)
