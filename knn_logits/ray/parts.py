"""Reads the part of an index that holds a range of entries. The rest never is in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError, DatastoreError
from knn_logits.store.datastore import Datastore
from knn_logits.store.reading import OpenArrays

# The arrays that have a row for each entry. Blocks of so many rows are read.
_ROWS = ("ids", "codes")
_AT_ONCE = 1 << 20


def part_of_index(store: Datastore, first: int, last: int) -> dict[str, Array]:
    """Reads the arrays of a smaller index: the same lists, with a range of the entries in them.

    Args:
        store: A datastore whose index is stored as plain arrays.
        first: The first entry.
        last: The entry after the last one.

    Returns:
        The arrays that `plain.from_arrays` takes. The entries are numbered from 0.

    Raises:
        DatastoreError: when the index is not stored as plain arrays.
        DamagedError: when its arrays do not fit each other.
    """
    record = store.manifest.file("index")
    if record is None:
        raise DatastoreError(
            f"the index {store.manifest.index.factory} of {store.folder} is not stored as plain "
            "arrays, so it cannot be spread over machines: make another with `knn-logits index`"
        )
    arrays = OpenArrays(store.folder / record.name).mapped()
    if "sizes" in arrays:
        return arrays | cut_lists(_blocks(arrays), arrays, first, last)
    width = len(arrays["codes"]) // max(1, len(store))
    return arrays | {"codes": arrays["codes"][first * width : last * width]}


def _blocks(arrays: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    for first in range(0, min(len(arrays[name]) for name in _ROWS), _AT_ONCE):
        yield {name: arrays[name][first : first + _AT_ONCE] for name in _ROWS}


def cut_lists(
    blocks: Iterator[Mapping[str, Array]], arrays: Mapping[str, Array], first: int, last: int
) -> dict[str, Array]:
    """Selects a range of entries from inverted lists.

    Args:
        blocks: `ids`, int64 [rows], and `codes`, uint8 [rows, bytes], in the lists' order.
        arrays: The other arrays, of which `sizes`, the length of each list, counts here.
        first: The first entry.
        last: The entry after the last one.

    Returns:
        `ids`, `codes` and `sizes` of the selected entries, numbered from 0.

    Raises:
        DamagedError: when the lists hold another number of entries.
    """
    ends = np.cumsum(arrays["sizes"])
    sizes = np.zeros(len(ends), np.int64)
    ids: list[Array] = []
    codes: list[Array] = []
    read = 0
    for block in blocks:
        inside = (block["ids"] >= first) & (block["ids"] < last)
        places = read + np.flatnonzero(inside)
        if len(places) and (not len(ends) or places[-1] >= ends[-1]):
            raise DamagedError("the index's lists are shorter than its ids: build the index again")
        sizes += np.bincount(np.searchsorted(ends, places, "right"), minlength=len(ends))
        ids.append(block["ids"][inside] - first)
        codes.append(block["codes"][inside])
        read += len(inside)
    return {"sizes": sizes, "ids": np.concatenate(ids), "codes": np.concatenate(codes)}
