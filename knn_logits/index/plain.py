"""A FAISS index as plain arrays, and made again from them through FAISS's own API.

Flat, IVFFlat, IVFSQ, IVFPQ and IVFRaBitQ, with linear transforms (OPQ, PCA) before. Other kinds
have no plain form; they are built from the keys again each time a datastore is opened.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from knn_logits.config import Metric
from knn_logits.errors import DamagedError
from knn_logits.index.demand import check_demand
from knn_logits.index.faiss_backend import FaissIndex, faiss_module, faiss_reason, make_empty
from knn_logits.neighbors import Array


def _parts(index: Any) -> tuple[list[Any], Any]:
    """The linear transforms before an index, and the index behind them."""
    faiss = faiss_module()
    inner, transforms = faiss.downcast_index(index), []
    while isinstance(inner, faiss.IndexPreTransform):
        transforms += [
            faiss.downcast_VectorTransform(inner.chain.at(number))
            for number in range(inner.chain.size())
        ]
        inner = faiss.downcast_index(inner.index)
    return transforms, inner


def has_plain_form(index: Any) -> bool:
    """Whether `to_arrays` can take a FAISS index apart."""
    faiss = faiss_module()
    transforms, inner = _parts(index)
    if not all(isinstance(transform, faiss.LinearTransform) for transform in transforms):
        return False
    if type(inner) in (faiss.IndexFlat, faiss.IndexFlatL2, faiss.IndexFlatIP):
        return True
    kinds = (
        faiss.IndexIVFFlat,
        faiss.IndexIVFScalarQuantizer,
        faiss.IndexIVFPQ,
        faiss.IndexIVFRaBitQ,
    )
    return type(inner) in kinds and isinstance(
        faiss.downcast_index(inner.quantizer), faiss.IndexFlat
    )


def to_arrays(index: FaissIndex) -> dict[str, Array]:
    """Takes an index apart.

    Args:
        index: One for which `has_plain_form(index.raw)` holds.

    Returns:
        Arrays by name; `from_arrays` makes the same index of them, bit for bit.
    """
    faiss = faiss_module()
    transforms, inner = _parts(index.raw)
    arrays: dict[str, Array] = {}
    for number, transform in enumerate(transforms):
        arrays[f"transform.{number}.A"] = faiss.vector_to_array(transform.A)
        arrays[f"transform.{number}.b"] = faiss.vector_to_array(transform.b)
    if isinstance(inner, faiss.IndexFlat):
        arrays["codes"] = faiss.vector_to_array(inner.codes)
        return arrays
    arrays["centroids"] = faiss.vector_to_array(faiss.downcast_index(inner.quantizer).codes)
    if isinstance(inner, faiss.IndexIVFScalarQuantizer):
        arrays["trained"] = faiss.vector_to_array(inner.sq.trained)
    if isinstance(inner, faiss.IndexIVFPQ):
        arrays["codebooks"] = faiss.vector_to_array(inner.pq.centroids)
    sizes = np.array([inner.invlists.list_size(n) for n in range(inner.nlist)], np.int64)
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
    arrays: dict[str, Array],
    factory: str,
    dim: int,
    metric: Metric,
    size: int,
    *,
    nprobe: int | None = None,
    threads: int | None = None,
) -> FaissIndex:
    """Makes an index of the arrays that `to_arrays` gave.

    Args:
        arrays: By name.
        factory: The factory string it was built with.
        dim: Length of a key.
        metric: How keys are compared.
        size: Number of keys.
        nprobe: Inverted lists visited a query.
        threads: OpenMP threads for searches.

    Raises:
        DamagedError: when the arrays do not belong to such an index.
    """
    try:
        index = _assemble(arrays, factory, dim, metric, size)
    except (KeyError, ValueError, RuntimeError, AssertionError, MemoryError) as error:
        reason = faiss_reason(error)
        raise DamagedError(
            f"the index file does not hold {factory!r} over {size} keys ({reason}); make it again "
            "with `knn-logits index`"
        ) from error
    return FaissIndex(index, metric, nprobe=nprobe, threads=threads)


def select(arrays: dict[str, Array], kept: Array) -> dict[str, Array]:
    """The arrays of an index without some of its keys; the others are numbered anew.

    Args:
        arrays: From `to_arrays`.
        kept: bool [keys].
    """
    if "sizes" not in arrays:
        codes = arrays["codes"].reshape(len(kept), -1)[kept]
        return {**arrays, "codes": np.ascontiguousarray(codes).reshape(-1)}
    ids, sizes = arrays["ids"], arrays["sizes"]
    there = kept[ids]
    lists = np.repeat(np.arange(len(sizes)), sizes)
    numbers = np.cumsum(kept, dtype=np.int64) - 1
    return {
        **arrays,
        "sizes": np.bincount(lists[there], minlength=len(sizes)).astype(np.int64),
        "ids": numbers[ids[there]],
        "codes": arrays["codes"][there],
    }


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _fill(vector: Any, array: Array, dtype: type, count: int | None = None) -> None:
    _expect(array.dtype == dtype, f"dtype {array.dtype}")
    _expect(count is None or array.size == count, f"{array.size} numbers, expected {count}")
    faiss_module().copy_array_to_vector(np.ascontiguousarray(array).reshape(-1), vector)


def _assemble(arrays: dict[str, Array], factory: str, dim: int, metric: Metric, size: int) -> Any:
    faiss = faiss_module()
    # Keys may have been taken out since, so that there are fewer of them than lists.
    check_demand(factory, dim, arrays["centroids"].nbytes // 4 if "IVF" in factory else 0)
    index = make_empty(factory, dim, metric)
    _expect(has_plain_form(index), "no plain form")
    transforms, inner = _parts(index)
    for number, transform in enumerate(transforms):
        matrix, bias = arrays[f"transform.{number}.A"], arrays[f"transform.{number}.b"]
        _fill(transform.A, matrix, np.float32, transform.d_in * transform.d_out)
        _expect(bias.size in (0, transform.d_out), "bias")
        _fill(transform.b, bias, np.float32)
        transform.have_bias = bias.size > 0
        transform.is_trained = True
        transform.set_is_orthonormal()
    if isinstance(inner, faiss.IndexFlat):
        _expect("sizes" not in arrays, "the arrays of an inverted file")
        _fill(inner.codes, arrays["codes"], np.uint8, size * inner.code_size)
        inner.ntotal = size
    else:
        _fill_inverted_file(inner, arrays, size)
    index.ntotal = size
    index.is_trained = True
    return index


def _fill_inverted_file(inner: Any, arrays: dict[str, Array], size: int) -> None:
    faiss = faiss_module()
    quantizer = faiss.downcast_index(inner.quantizer)
    _fill(quantizer.codes, arrays["centroids"], np.uint8, inner.nlist * inner.d * 4)
    quantizer.ntotal = inner.nlist
    quantizer.is_trained = True
    if isinstance(inner, faiss.IndexIVFScalarQuantizer):
        # FAISS reads as many numbers as the kind of quantiser has, however many there are.
        like = faiss.ScalarQuantizer(inner.d, inner.sq.qtype)
        like.train(np.zeros((1, inner.d), np.float32))
        _fill(inner.sq.trained, arrays["trained"], np.float32, like.trained.size())
    if isinstance(inner, faiss.IndexIVFPQ):
        _fill(inner.pq.centroids, arrays["codebooks"], np.float32, inner.d * inner.pq.ksub)
        if inner.metric_type == faiss.METRIC_L2 and inner.by_residual:
            inner.use_precomputed_table = 0
            inner.precompute_table()
    sizes, ids, codes = arrays["sizes"], arrays["ids"], arrays["codes"]
    _expect(sizes.shape == (inner.nlist,) and sizes.dtype == np.int64, "list sizes")
    # Each on its own too, since a sum of large numbers can wrap around to `size`.
    _expect(bool(((sizes >= 0) & (sizes <= size)).all()) and int(sizes.sum()) == size, "list sizes")
    _expect(ids.shape == (size,) and ids.dtype == np.int64, "ids")
    _expect(size == 0 or (int(ids.min()) >= 0 and int(ids.max()) < size), "ids out of range")
    _expect(codes.shape == (size, inner.code_size) and codes.dtype == np.uint8, "codes")
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
    inner.ntotal = size
    inner.is_trained = True
