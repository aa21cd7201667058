"""Writes a datastore of this package in the formats of earlier systems."""

import pickle
import sys
import types

import numpy as np


def write_memmap(path, array):
    path.write_bytes(np.ascontiguousarray(array).tobytes())


def knn_transformers(folder, store, *, keys=True, index=None, clusters=None):
    """Writes the files that knn-transformers would write."""
    folder.mkdir(parents=True, exist_ok=True)
    size, dim = len(store), store.manifest.dim
    stem = f"gpt2_{size}_{dim}"
    if keys:
        write_memmap(folder / f"dstore_{stem}_keys.npy", stored_keys(store))
    write_memmap(folder / f"dstore_{stem}_vals.npy", store.values.numpy().reshape(-1, 1))
    if index is not None:
        write_index(folder / f"index_{stem}.indexed", index)
    if clusters is not None:
        (folder / f"members_{stem}_100_7.pkl").write_bytes(csr_pickle(clusters))
    return folder


def stored_keys(store):
    return store.keys(np.arange(len(store)))


def write_index(path, index):
    import faiss

    faiss.write_index(index, str(path))


def faiss_index(keys, factory="IVF4,PQ8x4", metric=1):
    import faiss

    keys = keys.astype(np.float32)
    index = faiss.index_factory(keys.shape[1], factory, metric)
    if hasattr(index, "cp"):
        index.cp.min_points_per_centroid = 1
    index.train(keys)
    index.add(keys)
    if hasattr(index, "nprobe"):
        index.nprobe = 4
    return index


def csr_arrays(clusters):
    """Returns the row pointers and columns of the matrix that has the entries of each cluster."""
    order = np.argsort(clusters, kind="stable").astype(np.int32)
    counts = np.bincount(clusters)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), order


def csr_pickle(clusters, protocol=4, **changed):
    """Returns the pickle of scipy's csr_matrix of the clusters, without using scipy."""
    indptr, indices = csr_arrays(clusters)
    state = {
        "_shape": (int(len(indptr) - 1), len(clusters)),
        "maxprint": 50,
        "data": np.ones(len(clusters), np.int64),
        "indices": indices,
        "indptr": indptr,
        "_has_sorted_indices": False,
        **changed,
    }
    name = "scipy.sparse._csr"
    matrix = type("csr_matrix", (), {"__module__": name})
    module = types.ModuleType(name)
    module.csr_matrix = matrix
    made = matrix()
    made.__dict__.update(state)
    parents = {part: sys.modules.get(part) for part in ("scipy", "scipy.sparse", name)}
    try:
        sys.modules.update(dict.fromkeys(parents, module))
        return pickle.dumps(made, protocol)
    finally:
        for part, was in parents.items():
            if was is None:
                del sys.modules[part]
            else:
                sys.modules[part] = was
