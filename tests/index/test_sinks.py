"""Attention sinks: recognised by the datastore's files, and without a vote however it is asked."""

import copy

import numpy as np
import pytest
import torch
from conftest import TEXTS, make_gpt2

import knn_logits
from knn_logits import KNNConfig, explain
from knn_logits.index.opening import find_sink
from knn_logits.search.retriever import Retriever
from knn_logits.store.documents import Contexts

HANDBOOK = [
    "Dogs travel free of charge, but they must be on a lead and may not enter the café.",
    "The crossing takes 45 minutes. The first ferry leaves Gransund at 6:10 on weekdays.",
    "Error K-3733 means that the cooling water is too warm. Reduce the speed to 8 knots.",
    "A single ticket costs 9 crowns and 50 cents. Children under six travel free of charge.",
]


class Sinking(torch.nn.Module):
    """Replaces the state after a text's first token by one that is the same for all words.

    Args:
        word: How much of the word's own state is left in it.
    """

    def __init__(self, word=0.01):
        super().__init__()
        self.word = word

    def forward(self, states):
        states = states.clone()
        sink = 40.0 * torch.arange(states.shape[-1]).sin()
        states[:, 0] = sink + self.word * states[:, 0]
        return states


@pytest.fixture(scope="module")
def sinking():
    """A GPT-2 whose last feed-forward network reads a sink after the first token of a pass."""
    model = copy.deepcopy(make_gpt2())
    model.transformer.h[-1].ln_2 = torch.nn.Sequential(model.transformer.h[-1].ln_2, Sinking())
    return model


@pytest.fixture(scope="module", params=["l2", "ip"])
def sunk(request, sinking, tokenizer, tmp_path_factory):
    return knn_logits.build_datastore(
        sinking,
        tokenizer,
        TEXTS,
        tmp_path_factory.mktemp("sunk") / "s",
        index=knn_logits.IndexConfig("exact", metric=request.param),
        k=16,
        lmbda=0.4,
        temperature=5.0,
    )


def sink_states(sink, states):
    """Which states are sinks: they hide an entry that is none."""
    entry = int(np.flatnonzero(~sink.entries)[0])
    return sink.hides(states, torch.full((len(states), 1), entry))[:, 0]


def test_a_model_without_a_sink_has_none(store):
    assert find_sink(store) is None


def test_a_sink_is_found_and_neither_asks_nor_answers(sunk):
    sink = find_sink(sunk)
    keys = torch.from_numpy(sunk.keys(np.arange(len(sunk))).astype(np.float32))
    first = sunk.contexts.first_entry
    assert np.flatnonzero(sink_states(sink, keys)).tolist() == first.tolist()
    assert np.flatnonzero(sink.entries).tolist() == first.tolist()
    # With all entries as neighbors, every other entry votes and these do not.
    found = Retriever(sunk, KNNConfig(k=len(sunk))).search(keys)
    voting = found.mask.sum(-1).tolist()
    others = len(sunk) - len(first)
    expected = [0 if entry in first else others for entry in range(len(sunk))]
    assert voting == expected
    assert not np.isin(found.ids[found.mask].numpy(), first).any()


def test_the_nearest_entries_are_those_without_sinks(sunk):
    """By inner product a sink would be the nearest of all, and take the place of neighbors."""
    keys = torch.from_numpy(sunk.keys(np.arange(len(sunk))).astype(np.float32))
    ids = np.setdiff1d(np.arange(len(sunk)), sunk.contexts.first_entry)
    found = Retriever(sunk, KNNConfig(k=4)).search(keys[ids])
    products = keys[ids] @ keys[ids].T
    if sunk.manifest.metric == "l2":
        products = -torch.cdist(keys[ids].double(), keys[ids].double())
    nearest = torch.from_numpy(ids)[products.topk(4).indices]
    assert (found.ids.sort().values == nearest.sort().values).float().mean() > 0.99


@pytest.mark.parametrize("retomaton", [False, True])
def test_the_first_word_of_a_text_is_no_reason_for_the_second(sinking, tokenizer, sunk, retomaton):
    trace = explain(sinking, tokenizer, sunk, "Each morning", retomaton=retomaton)[0]
    assert trace.tokens[0].p == pytest.approx(trace.tokens[0].p_lm, rel=1e-6)
    assert trace.tokens[0].influence == 0.0
    assert all(token.neighbors for token in trace.tokens[1:])


@pytest.mark.parametrize(
    ("stride", "expected"), [(2, [0, 5, 6]), (4, [0, 4, 5, 6, 10, 14])], ids=["overlap", "apart"]
)
def test_states_after_one_token_begin_contexts_and_windows(stride, expected):
    contexts = Contexts(np.array([0, 6, 7, 9]), 20)
    # Entries: 5 of the first context, none of the second, one of the third, 10 of the last.
    assert contexts.first_states(4, stride).tolist() == expected


@pytest.mark.instruct
def test_smollm2_has_a_sink_and_is_not_contradicted_by_it(instruct, tmp_path):
    model, tokenizer = instruct
    store = knn_logits.build_datastore(
        model, tokenizer, HANDBOOK, tmp_path / "s", index="exact", calibrate=False
    )
    sink = find_sink(store)
    keys = torch.from_numpy(store.keys(np.arange(len(store))).astype(np.float32))
    assert np.flatnonzero(sink_states(sink, keys)).tolist() == store.contexts.first_entry.tolist()
    for text in ("Dear Sir, thank you", "The weather is cold", *HANDBOOK):
        token = explain(model, tokenizer, store, text)[0].tokens[0]
        assert token.influence == 0.0
        assert token.meaning != "contradicted"
