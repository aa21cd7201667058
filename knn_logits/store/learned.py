"""What a learned memory is in a datastore's folder, and what it cannot do.

A learned memory keeps rows in place of keys. Each row has a token, which is its value, and the
inner product of a row and a state is its similarity. So a search, a vote and a mixture are those of
a datastore whose metric is the inner product. `tokens.npy` holds the rows' tokens, ascending, after
one token that is not an entry, in a single document. No text of the corpus is kept.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError, DatastoreError
from knn_logits.store import layout
from knn_logits.store.manifest import Manifest
from knn_logits.store.reading import read_arrays

# The id of the only document.
DOCUMENT = "learned rows"


def needs_text(manifest: Manifest, folder: Path, feature: str) -> None:
    """Refuses what needs the text of a corpus, such as "RetoMaton", for a learned memory."""
    if manifest.learned is not None:
        raise DatastoreError(
            f"{folder} is a learned memory, which keeps rows and no text, and {feature} needs "
            "text: give a datastore that `knn-logits build` made, or distill again from another "
            "corpus"
        )


def read_rows(path: Path, manifest: Manifest) -> Array:
    """Reads the rows of a learned memory, [entries, dim], which must be finite."""
    arrays = read_arrays(path)[0]
    rows = arrays.get(layout.ROWS)
    expected, problem = (manifest.entries, manifest.dim), None
    if rows is None or len(arrays) > 1 or rows.shape != expected or rows.dtype != manifest.dtype:
        problem = (
            f"does not hold {manifest.entries} rows of {manifest.dim} numbers in {manifest.dtype}"
        )
    elif not np.isfinite(rows).all():
        problem = "holds numbers that are not finite"
    if rows is None or problem is not None:
        raise DamagedError(f"{path} {problem}; get the memory again, or distill it again")
    return rows


def row_of_token(values: Array, entry: int) -> tuple[int, int]:
    """Which of its token's rows a row is, from 1, and their number; the rows' tokens ascend."""
    first, last = np.searchsorted(values, [values[entry], values[entry] + 1])
    return entry - int(first) + 1, int(last - first)
