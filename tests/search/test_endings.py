"""The entries after the longest end of a text, against a plain search through the documents."""

import math

import numpy as np
import pytest
import torch
from handmade import make_store

from knn_logits.index.opening import Indexes
from knn_logits.search.combined import open_retriever
from knn_logits.search.endings import Endings
from knn_logits.search.occurrences import Prefixes
from knn_logits.search.rarity import (
    BEGINS,
    COUNTS,
    ENDS,
    rarity_of_end,
    token_rarities,
)
from knn_logits.settings.config import KNNConfig

RANDOM = np.random.default_rng(3)
DOCUMENTS = [RANDOM.integers(1, 6, int(size)).tolist() for size in RANDOM.integers(2, 60, 30)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("endings")
    return [make_store(folder / "a", DOCUMENTS[:20]), make_store(folder / "b", DOCUMENTS[20:])]


def endings(stores, k=1000, least=0.0, end_token=None, **settings):
    indexes = Indexes()
    config = KNNConfig(k=k, **settings)
    return Endings(open_retriever(stores, config, indexes=indexes), indexes, least, end_token)


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
    rarity = token_rarities([np.bincount(store.tokens) for store in stores])
    for row, text in enumerate(texts):
        length, after = searched(DOCUMENTS, text)
        shown = found.mask[row]
        assert sorted(found.values[row][shown].tolist()) == sorted(after)
        assert set(found.matched[row][shown].tolist()) <= {length}
        total = rarity_of_end(np.array(text), length, rarity, None)
        assert float(found.rarity[row]) == pytest.approx(total, rel=1e-5)


def test_rarity_is_minus_the_logarithm_of_the_frequency():
    found = token_rarities([np.array([2, 1]), np.array([1])])
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


def test_the_pieces_of_a_word_count_once_and_signs_nothing():
    # " The", " BW", "-", "60", ".", "\n"
    words = np.array([BEGINS | COUNTS, BEGINS | COUNTS, 0, COUNTS, 0, BEGINS | ENDS], np.uint8)
    rarity = np.array([3.0, 5.0, 5.0, 6.0, 3.0, 4.0], np.float32)

    def total(*tokens, kinds=words):
        return rarity_of_end(np.array(tokens), len(tokens), rarity, kinds)

    assert total(0, 1, 2, 3) == 3.0 + 6.0
    assert total(4, 5, 5, 0) == 3.0
    # After white space a token begins a word.
    assert total(3, 5, 3) == 12.0
    assert total(0, 1, 2, 3, kinds=None) == 19.0
    # A token that was added since is a word.
    assert total(0, 3, kinds=words[:3]) == 3.0 + 6.0


def test_words_that_are_copied_from_the_text_before_count_nothing():
    rarity = np.array([3.0, 5.0, 4.0, 6.0, 7.0], np.float32)
    prompt = [0, 1, 2, 3]
    copied = rarity_of_end(np.array([*prompt, -1, 4, 1, 2, 3]), 4, rarity, None)
    assert copied == 7.0
    assert rarity_of_end(np.array([*prompt[:2], -1, 4, 1, 2, 3]), 4, rarity, None) == 22.0
    # Only one token of a name follows a token that it followed before.
    assert rarity_of_end(np.array([1, 2, 3, -1, 4, 0, 2, 3]), 4, rarity, None) == 10.0
    # A pair does not stand across a mark.
    assert rarity_of_end(np.array([1, -1, 2, 4, 1, 2]), 3, rarity, None) == 16.0


def test_at_the_end_of_its_document_a_text_ends(stores):
    text, query = DOCUMENTS[3], torch.zeros(1, stores[0].manifest.dim)
    found = endings(stores, end_token=99).search(query, prefixes([text]))
    assert found.values[found.mask].tolist() == [99]
    store, entry = endings(stores).locate(int(found.ids[0, 0]))
    assert store.documents.at_token(entry + 4) == 3
    assert int(store.values[entry]) == text[-1]
    assert int(found.matched[0, 0]) == len(text)
    # Within the document, where it is left out, and without an end token, other entries follow.
    inside = endings(stores, end_token=99).search(query, prefixes([text[:-1]]))
    assert text[-1] in inside.values[inside.mask].tolist()
    name = stores[0].documents[3].shown.id
    for settings in ({"end_token": 99, "exclude": (name,)}, {}):
        shown = endings(stores, **settings).search(query, prefixes([text]))
        assert 99 not in shown.values[shown.mask].tolist()
