"""The ∞-gram against plain counts over the corpus, and in every way of asking a memory."""

import math
import shutil

import numpy as np
import pytest
import torch
from automaton import documents_of
from conftest import TEXTS
from distances import prefixes_of
from handmade import make_store
from mixture_reference import assert_shares, encode

import knn_logits
from knn_logits import KNNLogitsProcessor, Memory
from knn_logits.building.indexing import build_suffixes
from knn_logits.index.opening import Indexes
from knn_logits.search.matches import InfiniGram, SuffixIndex
from knn_logits.settings.config import KNNConfig

RANDOM = np.random.default_rng(5)


def grammar(length):
    """Text of a random automaton, so that ends of many lengths occur."""
    state, found = 0, []
    for _ in range(length):
        state = int((state * 7 + RANDOM.choice([0, 0, 0, 1, 3])) % 20)
        found.append(state)
    return found


PAGE = grammar(80)
DOCUMENTS = [grammar(int(RANDOM.integers(1, 120))) for _ in range(40)] + [PAGE, PAGE[20:]]


@pytest.fixture(scope="module", params=[False, True])
def corpus(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("suffixes") / "store"
    make_store(folder, DOCUMENTS, concatenate=request.param)
    return build_suffixes(folder)


@pytest.fixture(scope="module")
def texts(store, tmp_path_factory):
    """The shared datastore with a suffix index."""
    return build_suffixes(
        shutil.copytree(store.folder, tmp_path_factory.mktemp("suffixes") / "texts")
    )


def counted(documents, text):
    """By the paper: the longest end of a text that some token follows, and how often each does."""
    for length in range(len(text), 0, -1):
        end, found = text[len(text) - length :], []
        for number, one in enumerate(documents):
            for place in range(length, len(one)):
                if one[place - length : place] == end:
                    found.append((one[place], number))
        if found:
            return length, found
    return 0, []


def contexts(number):
    """Pieces of the corpus, some changed at one place or put together, and what it never holds."""
    for _ in range(number):
        text = []
        for _ in range(int(RANDOM.integers(1, 3))):
            one = DOCUMENTS[int(RANDOM.integers(len(DOCUMENTS)))]
            start = int(RANDOM.integers(len(one)))
            text += one[start : start + int(RANDOM.integers(1, 60))]
        if RANDOM.random() < 0.3:
            text[int(RANDOM.integers(len(text)))] = int(RANDOM.integers(0, 25))
        yield text


def owners_of(store, entries):
    return [store.documents.at_token(store.contexts.token_of(one)) for one in entries]


@pytest.mark.parametrize("narrow", [256, 4])
def test_counts_are_those_of_a_plain_search(corpus, monkeypatch, narrow):
    # Ranges of more places are narrowed by one token at a time.
    monkeypatch.setattr("knn_logits.search.matches._NARROW", narrow)
    some = [*contexts(400), [99], [24], PAGE, [*PAGE, 5], [-1, -1, *PAGE[:3]], [-3]]
    found = SuffixIndex(corpus).find(prefixes_of(some))
    for row, text in enumerate(some):
        text = [one for one in text if one >= 0]
        length, expected = counted(DOCUMENTS, text)
        assert int(found.lengths[row]) == length
        assert int(found.counts[row]) == len(expected)
        there = found.ids[row] >= 0
        entries, tokens = found.ids[row][there].tolist(), found.values[row][there].tolist()
        assert corpus.values[entries].tolist() == tokens
        pairs = zip(tokens, owners_of(corpus, entries), strict=True)
        assert sorted(pairs) == sorted(expected)
        assert found.log_weights[row][there].exp().tolist() == pytest.approx(
            [1 / max(1, len(expected))] * len(tokens)
        )
        assert bool((found.log_weights[row][~there] == -math.inf).all())


def test_one_occurrence_of_each_token_stands_for_many(corpus, monkeypatch):
    some = [text[-1:] for text in contexts(40)]
    whole = SuffixIndex(corpus).find(prefixes_of(some))
    monkeypatch.setattr("knn_logits.search.matches.MOST_OCCURRENCES", 8)
    less = SuffixIndex(corpus).find(prefixes_of(some))
    assert torch.equal(less.counts, whole.counts)
    assert less.ids.shape[1] < whole.ids.shape[1]
    for one, other in zip(per_token(less), per_token(whole), strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def per_token(found):
    """p of each token, a dictionary a row."""
    rows = []
    for values, logs in zip(found.values.tolist(), found.log_weights.exp().tolist(), strict=True):
        p = {}
        for value, weight in zip(values, logs, strict=True):
            if weight:
                p[value] = p.get(value, 0.0) + weight
        rows.append(p)
    return rows


def test_removed_and_excluded_documents_never_count(corpus, tmp_path):
    folder = shutil.copytree(corpus.folder, tmp_path / "copy")
    less = knn_logits.remove_documents(folder, ["3", "40"])
    left = [one if number not in (3, 40) else [] for number, one in enumerate(DOCUMENTS)]
    some = [*contexts(30), PAGE]
    hidden = corpus.entries_of(["3", "40"])
    for index in (SuffixIndex(less), SuffixIndex(corpus, hidden)):
        found = index.find(prefixes_of(some))
        for row, text in enumerate(some):
            length, expected = counted(left, text)
            assert (int(found.lengths[row]), int(found.counts[row])) == (length, len(expected))
            entries = found.ids[row][found.ids[row] >= 0].tolist()
            assert not {3, 40} & set(owners_of(corpus, entries))


def test_several_datastores_are_one_corpus(tmp_path):
    stores = []
    for number, part in enumerate((DOCUMENTS[:15], DOCUMENTS[15:])):
        make_store(tmp_path / str(number), part)
        stores.append(build_suffixes(tmp_path / str(number)))
    some = [*contexts(50), [99]]
    found = InfiniGram(stores, KNNConfig(infini_gram=0.3), Indexes()).find(prefixes_of(some))
    for row, text in enumerate(some):
        length, expected = counted(DOCUMENTS, text)
        assert (int(found.lengths[row]), int(found.counts[row])) == (length, len(expected))
        there = found.log_weights[row].exp() > 0
        assert torch.equal(there, found.ids[row] >= 0)
        assert int(there.sum()) == len(expected)
        if length:
            assert float(found.log_weights[row].exp().sum()) == pytest.approx(1.0, abs=1e-5)
        own = [one for one in found.ids[row].tolist() if one >= 0]
        first = len(stores[0])
        parts = [
            s.values[e] for s, e in ((stores[e >= first], e - first * (e >= first)) for e in own)
        ]
        assert sorted(map(int, parts)) == sorted(token for token, _ in expected)
    assert found.shares.tolist() == pytest.approx((0.3 * (found.lengths > 0)).tolist())
    assert found.shares[-1] == 0.0


PROMPT = "When error code E42 appears, open the"


def plain_mixture(memory, texts_ids, log_p_lm, states):
    """p of the next token by the formula, in float64."""
    store = memory.stores[0]
    _, occurrences = counted(documents_of(store), texts_ids)
    found = memory.retriever.search(states)
    p = log_p_lm.double().exp() * (1 - memory.config.lmbda)
    weights = memory.weighing.log_weights(found)[0].double().exp()
    p.index_add_(0, found.values[0], memory.config.lmbda * weights)
    share = memory.config.infini_gram if occurrences else 0.0
    p *= 1 - share
    for token, _ in occurrences:
        p[token] += share / len(occurrences)
    return p


def test_the_mixture_is_that_of_the_formula(model, tokenizer, texts):
    memory = Memory(model, texts, infini_gram=0.3, k=8, lmbda=0.4, temperature=5.0)
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    states = []
    handle = model.get_submodule("transformer.h.1.mlp").register_forward_pre_hook(
        lambda _, args: states.append(args[0])
    )
    with torch.no_grad():
        log_p_lm = model(ids).logits[:, -1].log_softmax(-1)
    handle.remove()
    state = states[0][:, -1:]
    vote = memory.vote(memory.neighbors(state, ids), log_p_lm)
    expected = plain_mixture(memory, ids[0].tolist(), log_p_lm[0], state[0])
    assert vote.log_p.exp()[0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert float(vote.log_p.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    # Where nothing may be said of what both votes say, the model's distribution is left.
    forbidden = log_p_lm.clone()
    forbidden[:, vote.neighbors.values[0]] = -math.inf
    assert torch.equal(memory.vote(memory.neighbors(state, ids), forbidden).log_p, forbidden)


def written(model, tokenizer, memory, prompts=(PROMPT,), **settings):
    inputs = encode(tokenizer, list(prompts))
    settings = {"max_new_tokens": 10, "do_sample": False, **settings}
    with KNNLogitsProcessor(model, memory, infini_gram="auto") as knn:
        output = model.generate(
            **inputs,
            **settings,
            logits_processor=[knn],
            return_dict_in_generate=True,
            output_scores=True,
        )
        return output, knn.trace(output, tokenizer)


@pytest.mark.parametrize("retomaton", [False, True])
def test_shares_of_what_is_written_sum_to_one(model, tokenizer, texts, retomaton):
    memory = Memory(model, texts, retomaton=retomaton)
    _, trace = written(model, tokenizer, memory)
    kinds = set()
    for token in trace[0].tokens:
        assert_shares(token)
        for one in token.neighbors:
            found = {"key": one.distance, "text": one.matched}
            kinds |= {kind for kind, number in found.items() if number is not None}
            assert one.distance is not None or one.matched is not None
            if one.matched and one.matched > 3:
                before = trace[0].prompt + trace[0].text
                assert one.before[-8:] in before
    assert kinds == {"key", "text"}


def test_an_entry_that_is_found_both_ways_is_listed_once(explain, texts):
    settings = {"k": 64, "lmbda": 0.5, "temperature": 10.0}
    trace = explain(texts, TEXTS[0], infini_gram=0.4, max_neighbors=2000, **settings)
    both = 0
    for token in trace[0].tokens:
        entries = [one.entry for one in token.neighbors]
        assert len(entries) == len(set(entries))
        assert sum(one.influence for one in token.neighbors) == pytest.approx(token.influence)
        assert sum(one.weight for one in token.neighbors) == pytest.approx(token.p_knn)
        both += sum(one.distance is not None and one.matched is not None for one in token.neighbors)
    assert both > 10


def test_a_batch_with_padding_is_written_as_each_alone(model, tokenizer, texts):
    memory = Memory(model, texts)
    prompts = (PROMPT, "In 1312")
    together = written(model, tokenizer, memory, prompts)[1]
    for number, prompt in enumerate(prompts):
        alone = written(model, tokenizer, memory, [prompt])[1][0]
        assert together[number].text == alone.text
        for one, other in zip(together[number].tokens, alone.tokens, strict=True):
            assert one.p == pytest.approx(other.p, rel=1e-3)
