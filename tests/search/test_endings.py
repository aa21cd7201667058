"""The entries after the longest end of a text, against a plain search through the documents."""

import math

import numpy as np
import pytest
import torch
from handmade import make_store

from knn_logits.index.opening import Indexes
from knn_logits.search.combined import open_retriever
from knn_logits.search.endings import Endings, rarities
from knn_logits.search.occurrences import Prefixes
from knn_logits.settings.config import KNNConfig

RANDOM = np.random.default_rng(3)
DOCUMENTS = [RANDOM.integers(1, 6, int(size)).tolist() for size in RANDOM.integers(2, 60, 30)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("endings")
    return [make_store(folder / "a", DOCUMENTS[:20]), make_store(folder / "b", DOCUMENTS[20:])]


def endings(stores, k=1000, least=0.0, **settings):
    indexes = Indexes()
    config = KNNConfig(k=k, **settings)
    return Endings(open_retriever(stores, config, indexes=indexes), indexes, least)


def prefixes(texts):
    lengths = np.array([len(text) for text in texts])
    end = np.cumsum(lengths)
    return Prefixes(np.concatenate(texts), end - lengths, end)


def searched(documents, text):
    """The longest end that occurs before a token, and the tokens that follow it."""
    for length in range(len(text), 0, -1):
        end = text[len(text) - length :]
        after = [
            one[place]
            for one in documents
            for place in range(length, len(one))
            if one[place - length : place] == end
        ]
        if after:
            return length, after
    return 0, []


def test_it_finds_what_a_plain_search_finds(stores):
    texts = [RANDOM.integers(1, 7, int(size)).tolist() for size in RANDOM.integers(1, 30, 60)]
    texts += [DOCUMENTS[2][:9], DOCUMENTS[25][:12]]
    dim = stores[0].manifest.dim
    found = endings(stores).search(torch.randn(len(texts), dim), prefixes(texts))
    rarity = rarities([np.asarray(store.tokens) for store in stores])
    for row, text in enumerate(texts):
        length, after = searched(DOCUMENTS, text)
        shown = found.mask[row]
        assert sorted(found.values[row][shown].tolist()) == sorted(after)
        assert set(found.matched[row][shown].tolist()) <= {length}
        total = sum(rarity[text[len(text) - length :]]) if length else 0.0
        assert float(found.rarity[row]) == pytest.approx(total, rel=1e-5)


def test_rarity_is_minus_the_logarithm_of_the_frequency():
    found = rarities([np.array([0, 0, 1]), np.array([0])])
    assert found.tolist() == pytest.approx([-math.log(3 / 4), -math.log(1 / 4)])


def test_no_end_extends_beyond_a_negative_number(stores):
    text = DOCUMENTS[2][:9]
    cut = [*text[:7], -1, *text[7:]]
    found = endings(stores).search(torch.zeros(2, stores[0].manifest.dim), prefixes([text, cut]))
    assert found.matched[0].max() == 9
    assert found.matched[1].max() == searched(DOCUMENTS, text[7:])[0] == 2


def test_ends_that_are_not_rare_have_no_entries(stores):
    text = prefixes([DOCUMENTS[2][:9]])
    query = torch.zeros(1, stores[0].manifest.dim)
    rarity = float(endings(stores).search(query, text).rarity)
    assert endings(stores, least=rarity - 0.01).search(query, text).mask.any()
    silent = endings(stores, least=rarity + 0.01).search(query, text)
    assert not silent.mask.any()
    assert float(silent.rarity) == 0.0


def test_the_nearest_of_many_are_kept_and_documents_are_left_out(stores):
    text, store = prefixes([[DOCUMENTS[0][0]]]), stores[0]
    everything = endings([store]).search(torch.zeros(1, store.manifest.dim), text)
    query = torch.from_numpy(store.keys(everything.ids[0, -1:].numpy())).float()
    nearest = endings([store], k=2).search(query, text)
    assert nearest.k == 2
    assert float(nearest.nearness.max()) == pytest.approx(0.0, abs=1e-4)
    name = store.documents[0].shown.id
    left = endings([store], exclude=(name,)).search(query, text)
    own = set(store.entries_of((name,)).tolist())
    assert own & set(everything.ids[0].tolist())
    assert not own & set(left.ids[0].tolist())
