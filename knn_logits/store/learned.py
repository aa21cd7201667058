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


def needs_text(manifest: Manifest, folder: Path, what: str) -> None:
    """Refuses what needs the text of a corpus, for a learned memory.

    Args:
        manifest: The manifest.
        folder: Its folder, for the message.
        what: What is refused, such as "RetoMaton".

    Raises:
        DatastoreError: when the manifest is that of a learned memory.
    """
    if manifest.learned is not None:
        raise DatastoreError(
            f"{folder} is a learned memory, which keeps rows and no text, and {what} needs text: "
            "give a datastore that `knn-logits build` made, or distill again from another corpus"
        )


def read_rows(path: Path, manifest: Manifest) -> Array:
    """Reads the rows of a learned memory, [entries, dim] in the manifest's precision.

    Raises:
        DamagedError: when the file holds something else, or numbers that are not finite.
    """
    arrays = read_arrays(path)[0]
    rows = arrays.get(layout.ROWS)
    expected = (manifest.entries, manifest.dim)
    if rows is None or len(arrays) > 1 or rows.shape != expected or rows.dtype != manifest.dtype:
        raise DamagedError(
            f"{path} does not hold {manifest.entries} rows of {manifest.dim} numbers in "
            f"{manifest.dtype}; get the memory again, or distill it again"
        )
    if not np.isfinite(rows).all():
        raise DamagedError(
            f"{path} holds numbers that are not finite; get the memory again, or distill it again"
        )
    return rows


def row_of_token(values: Array, entry: int) -> tuple[int, int]:
    """Counts a row among the rows of its token.

    Args:
        values: int [entries], the rows' tokens, ascending.
        entry: The row.

    Returns:
        Which of the token's rows it is, from 1, and how many there are.
    """
    first, last = np.searchsorted(values, [values[entry], values[entry] + 1])
    return entry - int(first) + 1, int(last - first)
