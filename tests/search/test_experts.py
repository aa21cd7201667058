"""The registry of what votes: an expert of a test's own, beside the neighbors and the ∞-gram."""

import shutil

import pytest
import torch

from knn_logits import Memory
from knn_logits.building.indexing import build_suffixes
from knn_logits.search import experts
from knn_logits.search.experts import RETRIEVERS, InfiniGram
from knn_logits.search.occurrences import Occurrences
from knn_logits.search.retomaton import RetomatonRetriever

SHARE, TOKEN = 0.25, 7


class Constant:
    """Votes for one token, by the first entry of the datastores."""

    @classmethod
    def opened(cls, stores, config, indexes):
        return cls()

    def find(self, prefixes):
        column = torch.zeros(len(prefixes), 1, dtype=torch.int64)
        ones = torch.ones(len(prefixes), dtype=torch.int64)
        shares, nothing = torch.full((len(prefixes),), SHARE), torch.zeros(len(prefixes))
        return Occurrences(
            column, column + TOKEN, column.float(), ones, ones, shares, nothing, nothing
        )


@pytest.fixture(scope="module")
def sorted_store(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts") / "sorted"
    return build_suffixes(shutil.copytree(store.folder, folder))


@pytest.mark.parametrize("infini_gram", [0.0, 0.5])
def test_an_expert_has_its_share_of_the_mixture(model, sorted_store, ids, monkeypatch, infini_gram):
    states, log_p_lm = torch.randn(1, 1, 32), torch.log_softmax(torch.randn(1, 384), dim=-1)

    def mixed():
        memory = Memory(model, sorted_store, infini_gram=infini_gram, lmbda=0.3)
        return memory.vote(memory.neighbors(states, ids), log_p_lm)

    before = mixed().log_p.exp()
    monkeypatch.setattr(experts, "EXPERTS", (InfiniGram, Constant))
    vote = mixed()
    expected = (1.0 - SHARE) * before
    expected[0, TOKEN] += SHARE
    torch.testing.assert_close(vote.log_p.exp(), expected)
    assert int(vote.neighbors.ids[0, -1]) == 0
    assert int(vote.neighbors.matched[0, -1]) == 1


def test_the_retriever_is_the_first_that_serves(model, store):
    memory = Memory(model, store, retomaton=True)
    assert type(memory.retriever) is RetomatonRetriever
    assert type(memory.asked(retomaton=False).retriever) is RETRIEVERS[-1]
