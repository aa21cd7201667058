"""FAISS's files of other systems: the same answers, and damage found or refused."""

import random

import numpy as np
import pytest

from knn_logits.errors import ConfigError, DamagedError
from knn_logits.index.faiss_library import faiss_module, read_ivfpq
from knn_logits.index.kinds import Kind
from knn_logits.index.plain_arrays import from_arrays, to_arrays

faiss = faiss_module()

DIM = 16


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(0).standard_normal((900, DIM)).astype(np.float32)


def make(vectors, factory, metric=1):
    index = faiss.index_factory(DIM, factory, metric)
    for part in (index, getattr(index, "pq", None)):
        if hasattr(part, "cp"):
            part.cp.min_points_per_centroid = 1
    if hasattr(index, "do_polysemous_training"):
        index.do_polysemous_training = False  # seconds, for nothing that is read here
    if factory.startswith("OPQ"):
        faiss.downcast_VectorTransform(index.chain.at(0)).niter = 1  # the same
    index.train(vectors)
    if hasattr(index, "nlist"):
        index.add_with_ids(vectors, np.arange(len(vectors)))
        index.nprobe = 3
    else:
        index.add(vectors)
    return index


def read(path):
    index, factory, metric = read_ivfpq(path)
    kind = Kind(factory, index.d, metric)
    return from_arrays(to_arrays(index), kind, index.ntotal, nprobe=index.nprobe)


@pytest.mark.parametrize(
    ("factory", "metric"), [("IVF8,PQ4x6", 1), ("IVF8,PQ4x6", 0), ("IVF800,PQ4x6", 1)]
)
def test_the_same_answers(vectors, tmp_path, factory, metric):
    index = make(vectors, factory, metric)
    path = tmp_path / "an.index"
    faiss.write_index(index, str(path))
    found = read(path)
    assert (found.dim, found.size) == (DIM, len(vectors))
    assert found.metric == ("l2" if metric else "ip")
    assert found.nprobe == 3
    distances, ids = index.search(vectors[:20], 10)
    there, other = found.raw.search(vectors[:20], 10)
    np.testing.assert_array_equal(ids, other)
    # FAISS adds up in another order where it keeps a table of its lists, which is not made here.
    np.testing.assert_allclose(distances, there, rtol=1e-5)


@pytest.mark.parametrize("factory", ["OPQ4,IVF8,PQ4x6", "PQ4x6", "IVF8_HNSW8,PQ4x6", "IVF8,SQ8"])
def test_other_kinds_are_refused(vectors, tmp_path, factory):
    path = tmp_path / "an.index"
    faiss.write_index(make(vectors, factory), str(path))
    with pytest.raises(DamagedError, match="cannot be read as an IVFPQ index"):
        read(path)


def test_ids_that_are_no_numbers_of_entries(vectors, tmp_path):
    path = tmp_path / "an.index"
    for ids in (np.arange(900) + 1, np.arange(900) // 2, np.arange(900) - 5):
        index = faiss.index_factory(DIM, "IVF8,PQ4x4")
        index.train(vectors)
        index.add_with_ids(vectors, ids)
        faiss.write_index(index, str(path))
        with pytest.raises(DamagedError):
            read(path)


def test_lists_in_another_file_are_not_followed(vectors, tmp_path):
    index = make(vectors, "IVF8,PQ4x6")
    lists = faiss.OnDiskInvertedLists(8, index.code_size, str(tmp_path / "lists"))
    lists.merge_from(index.invlists, 0) if hasattr(lists, "merge_from") else None
    index.replace_invlists(lists)
    path = tmp_path / "an.index"
    faiss.write_index(index, str(path))
    with pytest.raises(DamagedError, match="another type"):
        read(path)
    index.replace_invlists(faiss.ArrayInvertedLists(8, index.code_size))


def test_damage_never_gives_an_index_that_crashes(vectors, tmp_path):
    path = tmp_path / "an.index"
    faiss.write_index(make(vectors[:300], "IVF8,PQ4x6"), str(path))
    whole = path.read_bytes()
    chance = random.Random(0)
    refused = 0
    for _ in range(400):
        # The first bytes hold the counts, where damage does most.
        place = chance.randrange(200 if chance.random() < 0.7 else len(whole))
        broken = bytearray(whole)
        if chance.random() < 0.3:
            broken = broken[:place]
        else:
            broken[place] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        try:
            found = read(path)
        except (DamagedError, ConfigError):
            refused += 1
            continue
        if found.dim == DIM:
            _, ids = found.raw.search(vectors[:2], 3)
            assert ids.max() < found.size
    assert refused > 100
