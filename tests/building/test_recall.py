"""The recall of an index, against a plain loop, and what follows from it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from handmade import make_store
from random_keys import KEYS, make_random

from knn_logits import IndexConfig, build_index
from knn_logits.building import recall
from knn_logits.index.opening import open_index


@pytest.fixture
def plain(tmp_path):
    return make_random(tmp_path / "s")


def recall_by_hand(store, index, queries=256, at=64):
    """As a plain loop: each sampled key's nearest other entries, and how many are found."""
    keys = torch.from_numpy(KEYS).double()
    if store.manifest.metric == "cosine":
        keys = torch.nn.functional.normalize(keys)
    chosen = np.random.default_rng(1).permutation(len(store))[:queries]
    shares = []
    for own in chosen.tolist():
        if store.manifest.metric == "l2":
            order = ((keys - keys[own]) ** 2).sum(-1).argsort()
        else:
            order = (keys @ keys[own]).argsort(descending=True)
        true = [one for one in order.tolist() if one != own][:at]
        _, found = index.search(torch.from_numpy(KEYS[own : own + 1]).float(), at + 1)
        shares.append(len(set(found[0].tolist()) & set(true)) / at)
    return float(np.mean(shares))


@pytest.mark.parametrize(("factory", "metric"), [("IVF8,SQ4", "l2"), ("IVF8,Flat", "ip")])
def test_recall_is_that_of_a_plain_loop(plain, factory, metric):
    store = build_index(plain, IndexConfig(factory, metric))
    expected = recall_by_hand(store, open_index(store))
    assert store.manifest.index.recall.value == pytest.approx(expected, abs=2e-3)


def test_nprobe_is_the_smallest_that_reaches_the_recall(plain):
    store = build_index(plain, IndexConfig("IVF32,Flat"))
    chosen = store.manifest.index.nprobe
    index = open_index(store)
    assert index.nprobe == chosen > 1
    truth = recall.sample_truth(store, 0)
    assert recall.recall(index, truth) >= 0.9
    index.nprobe = chosen // 2
    assert recall.recall(index, truth) < 0.9


def test_a_low_recall_is_warned_of(plain, monkeypatch, caplog):
    monkeypatch.setattr(recall, "recall", lambda *_: 0.294)
    build_index(plain, IndexConfig("IVF32,Flat"))
    assert "the index has a recall of only 29.4%" in caplog.text


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_entries_that_are_equally_near_are_as_good_as_each_other(tmp_path, metric):
    """Of 16 keys, each is there 100 times, and an index may find any 64 of those."""
    keys = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float16)
    tokens = [one % 100 for one in range(1601)]
    store = make_store(tmp_path / "s", [tokens], keys=np.tile(keys, (100, 1)))
    store = build_index(store, IndexConfig("IVF4,Flat", metric, nprobe=4))
    assert store.manifest.index.recall.value == 1.0
    truth, index = recall.sample_truth(store, 0), open_index(store)
    last = truth.neighbors[:, -1]
    assert truth.as_near(last[:, None]).all()
    # What is less near is still missed: entries of other keys, and too few entries.
    other = last - last % 16 + (last + 1) % 16
    assert not truth.as_near(other[:, None]).any()
    few = SimpleNamespace(search=lambda queries, k: index.search(queries, 17))
    assert 16 / 64 <= recall.recall(few, truth) <= 17 / 64
