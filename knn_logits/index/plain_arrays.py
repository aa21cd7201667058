"""FAISS indexes as plain arrays: IVFFlat, IVFSQ, IVFPQ, IVFRaBitQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError
from knn_logits.index.faiss_library import (
    FaissIndex,
    faiss_module,
    faiss_reason,
    list_sizes,
    make_empty,
)
from knn_logits.index.kinds import Kind


def to_arrays(inner: Any) -> dict[str, Array]:
    faiss = faiss_module()
    quantizer = faiss.downcast_index(inner.quantizer)
    arrays: dict[str, Array] = {"centroids": faiss.vector_to_array(quantizer.codes)}
    if isinstance(inner, faiss.IndexIVFScalarQuantizer):
        arrays["trained"] = faiss.vector_to_array(inner.sq.trained)
    if isinstance(inner, faiss.IndexIVFPQ):
        arrays["codebooks"] = faiss.vector_to_array(inner.pq.centroids)
    sizes = list_sizes(inner)
    ids = np.empty(int(sizes.sum()), np.int64)
    codes = np.empty((len(ids), int(inner.code_size)), np.uint8)
    first = 0
    for number, size in enumerate(sizes.tolist()):
        if not size:
            continue
        last = first + size
        ids[first:last] = faiss.rev_swig_ptr(inner.invlists.get_ids(number), size)
        codes[first:last] = faiss.rev_swig_ptr(
            inner.invlists.get_codes(number), size * codes.shape[1]
        ).reshape(size, -1)
        first = last
    arrays |= {"sizes": sizes, "ids": ids, "codes": codes}
    return arrays


def from_arrays(
    arrays: Mapping[str, Array],
    kind: Kind,
    size: int,
    *,
    nprobe: int | None = None,
    threads: int | None = None,
) -> FaissIndex:
    """Makes an index from the result of `to_arrays`. Every index from a file is checked here."""
    try:
        index = _assemble(arrays, kind, size)
    except (KeyError, ValueError, RuntimeError, AssertionError, MemoryError) as error:
        reason = faiss_reason(error)
        raise DamagedError(
            f"the index file is not a {kind.factory!r} over {size} keys ({reason}); rebuild it "
            "with `knn-logits index`"
        ) from error
    return FaissIndex(index, kind.metric, nprobe=nprobe, threads=threads)


def _expect(holds: bool, fact: str) -> None:
    if not holds:
        raise ValueError(fact)


def _assemble(arrays: Mapping[str, Array], kind: Kind, size: int) -> Any:
    _expect(kind.approximate, "a type that has no arrays")
    # FAISS allocates lists and codebooks at once, so their numbers have to be those of the file.
    for name, rows in (("centroids", kind.lists), ("codebooks", kind.codewords)):
        held = arrays[name].nbytes // 4 if rows else 0
        _expect(held == kind.dim * rows, f"{name} of {held} numbers")
    index = make_empty(kind.factory, kind.dim, kind.metric)
    _fill_inverted_file(index, arrays, size)
    index.ntotal, index.is_trained = size, True
    return index


def _learnt(arrays: Mapping[str, Array], name: str, count: int, kind: Any = np.float32) -> Array:
    """Checks an array that an index learnt: a number of finite numbers, or of bytes."""
    array = arrays[name]
    _expect(array.dtype == kind, f"{name} of dtype {array.dtype}")
    _expect(array.size == count, f"{name} of {array.size} numbers, expected {count}")
    array = np.ascontiguousarray(array).reshape(-1)
    _expect(bool(np.isfinite(array.view(np.float32)).all()), f"{name} that are not finite")
    return array


def _fill_inverted_file(inner: Any, arrays: Mapping[str, Array], size: int) -> None:
    faiss = faiss_module()
    copy = faiss.copy_array_to_vector
    quantizer = faiss.downcast_index(inner.quantizer)
    copy(_learnt(arrays, "centroids", inner.nlist * inner.d * 4, np.uint8), quantizer.codes)
    quantizer.ntotal = inner.nlist
    quantizer.is_trained = True
    if isinstance(inner, faiss.IndexIVFScalarQuantizer):
        # FAISS reads as many numbers as the kind of quantiser needs, even if there are fewer.
        like = faiss.ScalarQuantizer(inner.d, inner.sq.qtype)
        like.train(np.zeros((1, inner.d), np.float32))
        copy(_learnt(arrays, "trained", like.trained.size()), inner.sq.trained)
    if isinstance(inner, faiss.IndexIVFPQ):
        copy(_learnt(arrays, "codebooks", inner.d * inner.pq.ksub), inner.pq.centroids)
    sizes, ids, codes = _checked_lists(inner, arrays, size)
    first = 0
    for number, length in enumerate(sizes.tolist()):
        if not length:
            continue
        last = first + length
        inner.invlists.add_entries(
            number,
            length,
            faiss.swig_ptr(np.ascontiguousarray(ids[first:last])),
            faiss.swig_ptr(np.ascontiguousarray(codes[first:last])),
        )
        first = last


def _checked_lists(
    inner: Any, arrays: Mapping[str, Array], size: int
) -> tuple[Array, Array, Array]:
    """Returns the size of each list, its keys and their codes. Each key must occur once."""
    sizes, ids, codes = arrays["sizes"], arrays["ids"], arrays["codes"]
    _expect(ids.shape == (size,) and ids.dtype == np.int64, "ids")
    _expect(codes.shape == (size, inner.code_size) and codes.dtype == np.uint8, "codes")
    _expect(sizes.shape == (inner.nlist,) and sizes.dtype == np.int64, "list sizes")
    # Each number is checked, too, since a sum of large numbers can wrap around to `size`.
    _expect(bool(((sizes >= 0) & (sizes <= size)).all()) and int(sizes.sum()) == size, "list sizes")
    _expect(size == 0 or (int(ids.min()) >= 0 and int(ids.max()) < size), "ids out of range")
    seen = np.zeros(size, dtype=bool)
    seen[ids] = True
    _expect(bool(seen.all()), "ids that are there twice, or are those of others")
    if type(inner) is faiss_module().IndexIVFFlat:
        whole = np.ascontiguousarray(codes).reshape(-1).view(np.float32)
        _expect(bool(np.isfinite(whole).all()), "codes that are not finite")
    return sizes, ids, codes
