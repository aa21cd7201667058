"""Of entries that are equally near, the lowest ids are found, by every index."""

import numpy as np
import pytest
import torch

from knn_logits.index.compact import CompactIndex
from knn_logits.index.exact import ExactIndex
from knn_logits.index.faiss_library import build_faiss

# 32 directions, each with both signs: all 256 keys are as far from the origin.
_UNIT = np.eye(32, dtype=np.float32)
_KEYS = np.concatenate([np.concatenate([_UNIT, -_UNIT])] * 4)
_KEYS = np.ascontiguousarray(_KEYS[np.random.default_rng(0).permutation(len(_KEYS))])
_QUERIES = torch.cat([torch.zeros(1, 32), torch.from_numpy(_UNIT[:3])]).repeat(8, 1)


def _index(kind, metric):
    if kind == "exact":
        return ExactIndex(torch.from_numpy(_KEYS), metric, center=torch.zeros(32))
    if kind == "compact":
        return CompactIndex(lambda: [_KEYS], len(_KEYS), 32, metric, dtype=torch.float32)
    index = build_faiss(kind, 32, metric, _KEYS, [_KEYS], threads=1)
    index.nprobe = 8
    return index


@pytest.mark.parametrize("k", [1, 10, 200])
@pytest.mark.parametrize("kind", ["exact", "compact", "IVF8,Flat", "IVF8,SQ8", "IVF8,PQ8x4"])
@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_the_lowest_ids_are_found(kind, metric, k):
    nearness, ids = _index(kind, metric).search(_QUERIES, k)
    everything = _index(kind, metric).search(_QUERIES, len(_KEYS))
    for row in range(len(_QUERIES)):
        every = np.lexsort((everything[1][row], -everything[0][row]))[:k]
        found = np.lexsort((ids[row], -nearness[row]))
        assert ids[row][found].tolist() == everything[1][row][every].tolist()
