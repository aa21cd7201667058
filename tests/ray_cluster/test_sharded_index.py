"""An index in shards, without a cluster: merging, and shards that stay away."""

import shutil

import numpy as np
import pytest
import torch
from distances import by_distance
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import IndexConfig, KNNConfig, WindowConfig, build_index, remove_documents
from knn_logits.errors import ConfigError, DamagedError, UnreachableError
from knn_logits.index.opening import Indexes
from knn_logits.ray.searching import ShardedIndex, merged, ranges
from knn_logits.ray.shard import Shard, cut_lists


@given(st.integers(1, 500), st.integers(1, 20))
def test_every_entry_is_in_one_shard(entries, shards):
    found = ranges(entries, shards)
    assert [one for first, last in found for one in range(first, last)] == list(range(entries))
    assert len(found) == min(shards, entries)
    lengths = [last - first for first, last in found]
    assert max(lengths) - min(lengths) <= 1


def test_the_nearest_of_all_shards():
    first = np.array([[-1.0, -3.0, -np.inf]], np.float32), np.array([[4, 2, -1]])
    second = np.array([[-2.0, -3.0, -0.5]], np.float32), np.array([[8, 9, 7]])
    nearness, ids = merged([first, second], 4)
    # Entries 2 and 9 are equally near.
    assert ids.tolist() == [[7, 4, 8, 2]]
    assert nearness.tolist() == [[-0.5, -1.0, -2.0, -3.0]]
    nearness, ids = merged([first, second], 9)
    assert ids.tolist() == [[7, 4, 8, 2, 9, -1]]
    assert nearness[0, -1] == -np.inf


class Asked:
    """Shards in this process; those in `away` do not answer."""

    def __init__(self, shards):
        self.shards, self.away, self.calls = shards, set(), []

    def __call__(self, number, method, *given):
        self.calls.append(number)

        def answer(seconds):
            if number in self.away:
                raise UnreachableError("away")
            return getattr(self.shards[number], method)(*given)

        return answer


def sharded(store, count):
    spans = ranges(len(store), count)
    name, checksum = str(store.folder), store.manifest.checksum
    asked = Asked([Shard(name, checksum, *span) for span in spans])
    manifest = store.manifest
    index = ShardedIndex(asked, spans, manifest.dim, manifest.metric)
    index.nprobe = manifest.index.nprobe
    return index, asked


@pytest.fixture(scope="module")
def large(tmp_path_factory, build):
    """A datastore of a few thousand entries whose texts differ."""
    chance = np.random.default_rng(0)
    words = ["crane", "winch", "harbour", "lamp", "oil", "keeper", "grade", "seven", "queen", "E42"]
    texts = [" ".join(chance.choice(words, 60)) for _ in range(24)]
    return build(
        texts,
        tmp_path_factory.mktemp("sharded") / "store",
        window=WindowConfig(64, 32),
        calibrate=False,
        index=IndexConfig("IVF16,SQ8", nprobe=4),
    )


def canonical(distances, ids):
    """The same neighbors, nearest first, and by their ids where they are equally near."""
    order = np.lexsort((ids.numpy(), distances.numpy()), axis=1)
    return (np.take_along_axis(one.numpy(), order, 1) for one in (distances, ids))


@pytest.mark.parametrize("factory", ["IVF16,SQ8", "IVF16,PQ8x4", "IVF16,RaBitQ", "IVF16,Flat"])
@pytest.mark.parametrize("shards", [2, 4])
def test_shards_find_what_the_whole_finds(large, tmp_path, factory, shards):
    folder = tmp_path / "store"
    shutil.copytree(large.folder, folder)
    store = build_index(folder, IndexConfig(factory, nprobe=4))
    queries = torch.from_numpy(store.keys(np.arange(0, len(store), 7))).float() + 0.01
    whole = Indexes().open(store, KNNConfig())
    index, _ = sharded(store, shards)
    for k in (1, 16, 200):
        expected = by_distance(whole, queries, k)
        distances, ids = by_distance(index, queries, k)
        found = tuple(canonical(distances, ids))
        said = tuple(canonical(*expected))
        # Equal distances, bit for bit; of entries that are equally near at the end, any may stay.
        np.testing.assert_array_equal(found[0][:, : said[0].shape[1]], said[0])
        near = said[0] < said[0][:, -1:]
        np.testing.assert_array_equal(found[1][:, : said[1].shape[1]][near], said[1][near])


def test_removed_documents_are_left_out(large, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(large.folder, folder)
    store = remove_documents(folder, ["3", "20"])
    queries = torch.from_numpy(store.keys(store.removed_entries)).float()
    expected = by_distance(Indexes().open(store, KNNConfig()), queries, 8)
    index, _ = sharded(store, 4)
    distances, ids = by_distance(index, queries, 8)
    assert not np.isin(ids.numpy(), store.removed_entries).any()
    np.testing.assert_array_equal(distances.numpy(), np.sort(expected[0].numpy()))
    with pytest.raises(ConfigError, match="cannot be removed"):
        index.remove(np.array([1]))


def test_a_shard_that_stays_away_is_an_error(large):
    index, asked = sharded(large, 4)
    asked.away = {2}
    with pytest.raises(UnreachableError, match=r"shard 2 of 4, the entries .* does not respond"):
        index.search(torch.zeros(2, large.manifest.dim), 8)
    asked.away = set()
    assert index.search(torch.zeros(2, large.manifest.dim), 8)[1].shape == (2, 8)


def test_another_datastore_of_the_same_name_is_refused(large):
    with pytest.raises(Exception, match="differs between machines"):
        Shard(str(large.folder), "0" * 64, 0, 10).ready()


def test_lists_that_do_not_fit_their_ids_are_damage():
    arrays = {"ids": np.arange(5), "codes": np.zeros((5, 2), np.uint8)}
    found = cut_lists(arrays | {"sizes": np.array([2, 3])}, 1, 4)
    assert found["sizes"].tolist() == [1, 2]
    assert found["ids"].tolist() == [0, 1, 2]
    with pytest.raises(DamagedError, match="shorter than its ids"):
        cut_lists(arrays | {"sizes": np.array([2, 1])}, 1, 5)
