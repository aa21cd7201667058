"""Passages and the first stage, worked out by hand and against a plain count."""

import pytest
from distances import prefixes_of
from handmade import make_store

from knn_logits.building.indexing import build_suffixes
from knn_logits.search.matches import SuffixIndex
from knn_logits.search.on_demand import PassageFinder, Passages
from knn_logits.store.records import OnDemandRecord

# Three passages of four entries each, in three documents.
DOCUMENTS = [[1, 2, 3, 4, 5], [9, 2, 3, 8, 7], [6, 6, 3, 6, 6]]


@pytest.fixture
def finder(tmp_path):
    def made(without=None, **settings):
        make_store(tmp_path / "s", DOCUMENTS)
        store = build_suffixes(tmp_path / "s")
        record = OnDemandRecord(**{"passage": 4, "every": 2, "ends": 2, "found": 2, **settings})
        passages = Passages(store.contexts, record.passage, record.context)
        hidden = None if without is None else store.entries_of(without)
        return PassageFinder(SuffixIndex(store, hidden), passages, record)

    return made


def test_passages_that_share_more_and_rarer_ends_come_first(finder):
    # The end [2, 3] stands in two passages, and before it [1] in the first alone.
    assert finder(found=1).find(prefixes_of([[1, 2, 3, 4]])) == [(0,)]
    assert finder(found=1).find(prefixes_of([[9, 2, 3, 8]])) == [(1,)]
    # Nothing longer than [3] occurs, and all three passages have it; [6] is the third's.
    assert finder(found=1).find(prefixes_of([[6, 3]])) == [(2,)]
    assert finder(found=3).find(prefixes_of([[5, 3]])) == [(0, 1, 2)]
