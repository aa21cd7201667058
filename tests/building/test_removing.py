"""Documents that were removed are never found, and after `compact` are nowhere on the disk."""

import numpy as np
import pytest
import torch
from folders import contents, names, one_line
from handmade import make_store, shards_of

from knn_logits import Datastore, Document, IndexConfig, KNNConfig, build_index
from knn_logits.building.removing import compact, remove_documents
from knn_logits.errors import CorpusError
from knn_logits.index.opening import open_index
from knn_logits.search.retriever import Retriever
from knn_logits.store import layout

RANDOM = np.random.default_rng(11)
LENGTHS = [31, 1, 40, 25, 60, 2, 33, 1, 50, 45, 70, 42]
DOCUMENTS = [RANDOM.integers(0, 30_000, length).tolist() for length in LENGTHS]
FACTORIES = ["exact", "IVF8,SQ8", "IVF4,PQ4x4"]
GONE = [0, 4, 5, 9]


def make(folder, factory="exact", metric="l2", **settings):
    entries = sum(LENGTHS) - (1 if settings.get("concatenate") else len(LENGTHS))
    keys = np.random.default_rng(2).standard_normal((entries, 8)).astype(np.float16)
    store = make_store(folder, DOCUMENTS, keys, vocabulary=30_000, **settings)
    return build_index(store, IndexConfig(factory, metric))


def search(store, queries, k, **settings):
    index = open_index(store)
    retriever = Retriever(store, KNNConfig(k=k, **settings), index=index)
    return retriever.search(queries)


def keys_of(store, entries):
    return torch.from_numpy(store.keys(entries).astype(np.float32))


@pytest.fixture(autouse=True)
def _small_shards():
    with shards_of(1000):
        yield


# Removed


@pytest.mark.parametrize(
    ("factory", "metric"), [("exact", "l2"), ("IVF4,PQ4x4", "l2"), ("IVF8,SQ8", "cosine")]
)
def test_a_removed_document_is_never_found(tmp_path, factory, metric):
    store = remove_documents(make(tmp_path / "s", factory, metric), [str(n) for n in GONE])
    removed = store.removed_entries
    owners = [int(store.passage(entry).document.id) for entry in range(len(store))]
    assert removed.tolist() == [n for n, owner in enumerate(owners) if owner in GONE]
    left = len(store) - len(removed)
    # Queries aimed at the removed entries: their own keys, and places near them.
    aimed = keys_of(store, np.resize(removed, 2000))
    noise = torch.randn(aimed.shape, generator=torch.Generator().manual_seed(0))
    aimed += noise * torch.linspace(0, 0.5, len(aimed)).unsqueeze(1)
    gone = torch.from_numpy(removed)
    for k in (1, 8, 130):
        found = search(store, aimed, k)
        assert not torch.isin(found.ids, gone).any()
        assert (found.ids[:, 0] >= 0).all()
    everything = search(store, aimed[:50], len(store) + 10, nprobe=1000)
    assert not torch.isin(everything.ids, gone).any()
    for row, mask in zip(everything.ids.tolist(), everything.mask.tolist(), strict=True):
        there = [one for one, shown in zip(row, mask, strict=True) if shown]
        assert len(set(there)) == len(there) <= left
        assert len(there) == left


def test_the_last_documents_are_not_removed(tmp_path):
    store = remove_documents(make(tmp_path / "s", "exact"), "0")
    with pytest.raises(CorpusError, match=r"all documents of .* nothing was removed") as caught:
        remove_documents(store, [str(n) for n in range(1, len(LENGTHS))])
    one_line(caught)
    assert Datastore(store.folder).manifest == store.manifest


def test_a_title_or_a_uri_will_do(build, tmp_path):
    given = [
        Document("The first text.", "a", title="One", uri="https://x.org/1"),
        Document("The second text.", "b", title="Two", uri="One"),
        Document("The third text.", "One", title="Three"),
        Document("The fourth text.", "d", title="Same"),
        Document("The fifth text.", "e", title="Same"),
    ]
    store = build(given, tmp_path / "s", k=4)
    with pytest.raises(CorpusError, match="2 documents have the title 'Same'") as caught:
        remove_documents(store, "Same")
    one_line(caught)
    assert "'d', 'e'" in str(caught.value)
    # An id comes first, then a title, then a uri.
    for removed in ((2,), (0, 2), (0, 1, 2)):
        assert remove_documents(store, "One").manifest.removed == removed
    with pytest.raises(CorpusError, match=r"info .* --documents"):
        remove_documents(store, "One")
    assert remove_documents(store, "d").manifest.removed == (0, 1, 2, 3)


@pytest.mark.parametrize("ids", [["none"], ["0", "none"], ["none", "0"], [""], ["3"], ["0", "3"]])
def test_an_id_that_is_not_there_removes_nothing(tmp_path, ids):
    store = remove_documents(make(tmp_path / "s"), ["3"])
    before = contents(store.folder)
    with pytest.raises(CorpusError, match="nothing was removed") as caught:
        remove_documents(store, ids)
    one_line(caught)
    assert contents(store.folder) == before


# Compact


def places(content, part):
    return content.find(part) >= 0


def assert_forgotten(folder, old, numbers):
    """Neither text nor keys nor names of documents are in any file."""
    everything = b"\0".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    for number in numbers:
        document = old.documents[number]
        tokens = np.array(old.tokens[document.first : document.first + document.length])
        for first in range(len(tokens) - 1):
            assert not places(everything, tokens[first : first + 2].astype(np.int32).tobytes())
        entries = old.contexts.entries_of(np.array([document.first]), np.array([document.length]))
        for key in old.keys(entries):
            assert not places(everything, key.tobytes())
            assert not places(everything, key.astype(np.float32).tobytes())
        assert not places(everything, f"title {number}".encode() + b"\n")
    table = old.documents
    for number in numbers:
        mine = Datastore(folder).documents
        assert table[number].id not in [mine[n].id for n in range(len(mine))]
        assert table[number].title not in [mine[n].title for n in range(len(mine))]


@pytest.mark.parametrize("concatenate", [False, True])
@pytest.mark.parametrize("factory", FACTORIES)
def test_what_was_compacted_away_is_in_no_file(tmp_path, factory, concatenate):
    old = make(tmp_path / "s", factory, concatenate=concatenate)
    queries = keys_of(old, np.arange(len(old)))
    marked = remove_documents(old, [str(n) for n in GONE])
    before = search(marked, queries, 12, nprobe=1000)
    small = compact(marked)
    assert_forgotten(small.folder, old, GONE)
    assert names(small.folder) == sorted(
        [layout.MANIFEST, *(one.name for one in small.manifest.files)]
    )
    assert small.manifest.removed == ()
    kept = [n for n in range(len(LENGTHS)) if n not in GONE]
    assert [small.documents[n].id for n in range(len(kept))] == [str(n) for n in kept]
    assert small.tokens.tolist() == [token for n in kept for token in DOCUMENTS[n]]
    # The entries left are those there were, under new numbers.
    numbers = np.setdiff1d(np.arange(len(old)), marked.removed_entries)
    if concatenate:
        # The first token of the stream has nothing before it any more.
        numbers = numbers[1:]
    np.testing.assert_array_equal(small.keys(np.arange(len(small))), old.keys(numbers))
    assert small.values.tolist() == old.values[numbers].tolist()
    after = search(small, queries, 12, nprobe=1000)
    renumbered = {int(one): place for place, one in enumerate(numbers)} | {-1: -1}
    same = []
    for row in range(len(queries)):
        expected = {renumbered.get(one) for one in before.ids[row].tolist()} - {None, -1}
        same.append(len(expected & set(after.ids[row].tolist())) / len(expected))
    # The index is trained anew, so that the codes of compressed keys differ.
    least = {"IVF8,SQ8": 0.9, "IVF4,PQ4x4": 0.3}
    assert np.mean(same) > least.get(factory, 0.999)
