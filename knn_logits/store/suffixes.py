"""The suffix order of a text: its tokens, sorted by the text before them, read backwards.

The occurrences of one ending stand side by side, so the longest ending that occurs is found by
bisection. No ending crosses a document's edge.
"""

from __future__ import annotations

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import DatastoreError
from knn_logits.progress import Progress, no_progress

# Places are kept as uint32.
MOST_TOKENS = 1 << 32


def suffix_order(tokens: Array, first: Array, progress: Progress = no_progress) -> Array:
    """uint32 [tokens - documents], places in `tokens`; of equal texts the earlier is first."""
    # Prefix doubling (Manber and Myers 1990): texts sorted by their last h tokens are sorted by
    # their last 2 h with the ranks that stand h tokens earlier. It takes 50 bytes a token.
    if len(tokens) >= MOST_TOKENS:
        raise DatastoreError(
            f"a suffix index covers at most {MOST_TOKENS:,} tokens, but there are {len(tokens):,}: "
            "split the corpus into several datastores"
        )
    # How many tokens of its document stand before each.
    lengths = np.diff(np.append(first, len(tokens)))
    depth: Array = np.arange(len(tokens), dtype=np.int64) - np.repeat(first, lengths)
    # The last token of the text before each place.
    order: Array = np.flatnonzero(depth) - 1
    total = len(order)
    order = order[np.argsort(tokens[order], kind="stable")]
    rank = np.zeros(len(tokens), np.uint32)
    slots = np.arange(total)
    keys: Array = tokens[order].astype(np.uint64) << np.uint64(32) | np.uint64(1)
    length = 1
    while True:
        ends = order[slots]
        new = np.ones(len(slots), bool)
        new[1:] = keys[1:] != keys[:-1]
        rank[ends] = np.maximum.accumulate(np.where(new, slots, 0)) + 1
        alone = new.copy()
        alone[:-1] &= new[1:]
        # A text that ended before is equal to its neighbors for good.
        open_ = ~alone & ((keys & np.uint64(0xFFFFFFFF)) != 0)
        slots = slots[open_]
        progress("suffixes", total - len(slots), total)
        if not len(slots):
            return (order + 1).astype(np.uint32)
        ends = order[slots]
        earlier = np.where(depth[ends] >= length, rank[ends - np.minimum(ends, length)], 0)
        keys = rank[ends].astype(np.uint64) << np.uint64(32) | earlier.astype(np.uint64)
        sorting = np.argsort(keys, kind="stable")
        order[slots], keys = ends[sorting], keys[sorting]
        length *= 2
