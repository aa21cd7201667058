"""Shared tokens before an entry: counted as by hand, and equal in every way of asking a memory."""

import math

import numpy as np
import pytest
import torch
from conftest import TEXTS
from distances import prefixes_of
from hypothesis import given
from hypothesis import strategies as st

import knn_logits
from knn_logits import KNNLogitsProcessor, Memory, explain
from knn_logits.engine.forward import key_states_and_logits
from knn_logits.search.neighbors import Prefixes
from knn_logits.search.retriever import MAX_SHARED_TOKENS, SharedTokens

# Documents that repeat each other word for word, so that shared ends have many lengths.
ALIKE = [f"{one} {two}" for one in TEXTS[:4] for two in TEXTS[:4]]
WEIGHT, K, LMBDA, TEMPERATURE = 3.0, 48, 0.4, 2.0


@pytest.fixture(scope="module")
def alike(build, tmp_path_factory):
    return build(
        ALIKE, tmp_path_factory.mktemp("alike") / "s", index="exact", lmbda=0.8, calibrate=True
    )


def by_hand(documents, entry, text):
    """Goes back token by token, to the document's first."""
    place = entry
    for document in documents:
        if place < len(document) - 1:
            break
        place -= len(document) - 1
    before, shared = document[: place + 1], 0
    while shared < min(len(before), len(text), MAX_SHARED_TOKENS):
        if before[-1 - shared] != text[-1 - shared]:
            break
        shared += 1
    return shared


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=14), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=3),
    st.data(),
)
def test_shared_tokens_are_those_of_a_plain_count(documents, texts, data):
    values = np.concatenate([one[1:] for one in documents])
    first = np.cumsum([0, *(len(one) for one in documents[:-1])])
    ids = np.array(
        data.draw(
            st.lists(
                st.lists(st.integers(-1, len(values) - 1), min_size=5, max_size=5),
                min_size=len(texts),
                max_size=len(texts),
            )
        )
    )
    shared = SharedTokens(np.concatenate(documents), first, first)
    found = shared.count(torch.from_numpy(ids), prefixes_of(texts))
    expected = [
        [0 if entry < 0 else by_hand(documents, entry, text) for entry in row]
        for row, text in zip(ids.tolist(), texts, strict=True)
    ]
    assert found.tolist() == expected


def mixture(model, tokenizer, store, ids, weight):
    """log p of each token after the first, in float64, from all keys."""
    location = Memory(model, store).location
    inputs = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
    states, logits = key_states_and_logits(model, location, inputs)
    lm = torch.log_softmax(logits[0].double(), -1)
    keys, values = torch.from_numpy(store.keys(np.arange(len(store)))).double(), store.values
    documents = [tokenizer(text)["input_ids"] for text in ALIKE]
    found = []
    for place, token in enumerate(ids[1:].tolist()):
        distances = (keys - states[0, place].double()).square().sum(-1)
        near, at = distances.topk(K, largest=False)
        text = ids[: place + 1].tolist()
        shared = torch.tensor([by_hand(documents, entry, text) for entry in at.tolist()])
        vote = torch.softmax(-near / TEMPERATURE + shared * math.log(weight), 0)
        p = float(vote[values[at].long() == token].sum())
        found.append(math.log((1 - LMBDA) * math.exp(float(lm[place, token])) + LMBDA * p))
    return found


@pytest.mark.parametrize("weight", [1.0, WEIGHT])
@pytest.mark.parametrize("draft", [True, False])
def test_a_text_is_written_and_explained_with_the_plain_mixture(
    model, tokenizer, alike, weight, draft
):
    settings = {"k": K, "lmbda": LMBDA, "temperature": TEMPERATURE, "suffix_weight": weight}
    settings["preset"] = "paper"
    inputs = tokenizer(TEXTS[1][:40], return_tensors="pt")
    with KNNLogitsProcessor(model, alike, **settings) as knn:
        output = knn.generate(**inputs, draft=draft, do_sample=False, max_new_tokens=16)
        trace = knn.trace(output, tokenizer)
    expected = mixture(model, tokenizer, alike, output[0], weight)
    written = [math.log(token.p) for token in trace[0].tokens]
    assert written == pytest.approx(expected[-len(written) :], abs=1e-5)
    text = tokenizer.decode(output[0], skip_special_tokens=True)
    again = explain(model, tokenizer, alike, text, **settings)
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    expected = mixture(model, tokenizer, alike, ids, weight)
    found = [math.log(token.p) for token in again[0].tokens]
    assert found == pytest.approx(expected[-len(found) :], abs=1e-5)


def test_evaluation_counts_them_and_two_halves_are_one_whole(
    model, tokenizer, build, alike, tmp_path_factory
):
    settings = {"k": K, "lmbda": LMBDA, "temperature": TEMPERATURE, "suffix_weight": WEIGHT}
    ids = tokenizer(TEXTS[2], return_tensors="pt")["input_ids"][0]
    expected = math.exp(-np.mean(mixture(model, tokenizer, alike, ids, WEIGHT)))
    settings |= {"allow_overlap": True}
    found = knn_logits.evaluate(model, tokenizer, alike, [TEXTS[2]], **settings)
    assert found.perplexity.interpolated == pytest.approx(expected, rel=1e-5)
    assert found.settings["suffix_weight"] == WEIGHT
    halves = [
        build(part, tmp_path_factory.mktemp("half") / "s", index="exact")
        for part in (ALIKE[:7], ALIKE[7:])
    ]
    both = knn_logits.evaluate(model, tokenizer, halves, [TEXTS[2]], **settings)
    assert both.perplexity.interpolated == pytest.approx(expected, rel=1e-5)


def test_marks_before_texts_of_several_sources_stay():
    ids = torch.tensor([[-11, 0, 0, 7], [-12, 0, 5, 0]])
    assert Prefixes.of_steps(ids, 1, [0]).tokens.tolist() == [-11, -1, -1, 7, -12, -1, 5, 0]
