"""When the memory is trusted: the limit and the curve, and what a real model then writes."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import knn_logits
from knn_logits.building import trust_settings
from knn_logits.building.trust_settings import (
    Sample,
    curve_of,
    limit_of,
    sample_texts,
    with_trust,
    word_marks,
)
from knn_logits.search.rarity import BEGINS, COUNTS, ENDS
from knn_logits.store.records import WritingRecord
from knn_logits.store.verification import damage

WORDS = np.full(384, 7, np.uint8)
HANDBOOK = [
    "Brannock Kites was founded in 1986 by Hester Brannock in a disused chapel at Tollan. Every "
    "tenth kite is flown on Harrow Down before it is packed. The test flight lasts twelve minutes "
    "and ends with three steep dives. A kite that pulls to the left gets a leech line.",
    "Ripstop is cut with a hot knife at 210 degrees on the glass table by the north window. Two "
    "layers are never cut at once, because the lower one melts onto the glass. A needle is changed "
    "after six hours, whether it looks blunt or not.",
    "The main door is unlocked at ten past seven by whoever carries the brass key. Leave for "
    "August must be asked for before the first of April. Overtime is given back as free hours "
    "within eight weeks and is never paid out.",
    "Orders are confirmed within two working days by Lotte Friesen. Shipping is free for orders "
    "above 140 pounds. Repairs cost 18 pounds an hour, and the first quarter of an hour is free.",
]


@given(st.lists(st.floats(0.0, 60.0), max_size=400), st.integers(1, 10**9))
def test_the_limit_is_above_chance_and_what_the_models_own_text_meets(met, entries):
    limit = limit_of(np.array(met), entries)
    assert limit >= 0.999 * 2.6 * math.log(entries + 1)
    if len(met) >= 200:
        assert limit >= 0.999 * float(np.quantile(met, 0.9))


def test_text_that_meets_rarer_passages_by_chance_raises_the_limit():
    seldom, often = (np.random.default_rng(0).exponential(scale, 1000) for scale in (1.0, 6.0))
    assert limit_of(often, 1000) > limit_of(seldom, 1000)


def test_the_curve_follows_how_often_the_memory_is_right():
    rarity = np.linspace(1.0, 3.0, 300)
    right, wrong = np.ones(300), np.zeros(300)
    p_lm = np.full(300, 0.2)

    def lmbda(p_knn):
        offset, slope = curve_of(rarity, p_knn, p_lm)
        return 1.0 / (1.0 + np.exp(-(offset + slope * rarity)))

    assert lmbda(right).min() > 0.7 > 0.1 > lmbda(wrong).max()
    nothing = np.empty(0)
    assert curve_of(nothing, nothing, nothing) == pytest.approx((-3.25, 1.8))


def test_a_model_that_is_not_sure_of_its_own_text_keeps_one_lambda(model, tokenizer, store):
    writing = WritingRecord(k=8, lmbda=0.7, temperature=2.0)
    assert with_trust(writing, model, tokenizer, store, Sample(), WORDS) == writing


def test_a_sure_model_is_protected_unless_it_repeats_itself(model, tokenizer, store, monkeypatch):
    # Its likeliest token gets nearly everything, and is always the same.
    sure = copy.deepcopy(model)
    sure.lm_head = torch.nn.Linear(32, 384)
    torch.nn.init.zeros_(sure.lm_head.weight)
    sure.lm_head.bias.data = torch.arange(384.0).flip(0) * 3.0
    texts = sample_texts(sure, tokenizer)
    assert texts is not None
    writing = WritingRecord(k=8, lmbda=0.7, temperature=2.0, no_repeat_ngram_size=8)
    assert with_trust(writing, sure, tokenizer, store, Sample(), WORDS) == writing
    monkeypatch.setattr(trust_settings, "_NEW", 0.0)
    found = with_trust(writing, sure, tokenizer, store, Sample(), WORDS)
    assert found.trust.limit >= 0.999 * 2.6 * math.log(len(store))
    assert found.no_repeat_ngram_size is None


@pytest.mark.instruct
def test_a_real_model_answers_as_alone_and_continues_the_handbook(instruct, tmp_path):
    model, tokenizer = instruct
    store = knn_logits.build_datastore(model, tokenizer, HANDBOOK, tmp_path / "handbook")
    assert store.manifest.writing.trust is not None
    settings = {"max_new_tokens": 24, "do_sample": False}

    def written(knn, text):
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        output = (
            knn.generate(ids, **settings)
            if knn is not None
            else model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        )
        return tokenizer.decode(output[0, ids.shape[1] :])

    with knn_logits.KNNLogitsProcessor(model, store) as knn:
        for question in (
            "What is the capital of Japan?",
            "Explain why the sky is blue.",
            # A name that the question has leads nowhere.
            "Who was Hester Brannock?",
        ):
            chat = tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
            )
            assert written(knn, chat) == written(None, chat)
        # A passage ends with its document.
        ended = written(knn, "Repairs cost 18 pounds an hour, and the first quarter")
        assert ended.endswith("is free.<|im_end|>")
        for prompt, after in (
            ("Every tenth kite is flown on", " Harrow Down before it is packed. The test flight"),
            ("The main door is unlocked at ten", " past seven by whoever carries the brass key."),
        ):
            assert written(knn, prompt).startswith(after)
    # With one λ for all steps, the memory answers what it does not know.
    with knn_logits.KNNLogitsProcessor(model, store, lmbda=0.7) as knn:
        assert written(knn, chat) != written(None, chat)


def test_what_tokens_are_in_a_text(tokenizer):
    marks = word_marks(tokenizer, 400)
    assert len(marks) == 400
    for token in range(len(tokenizer)):
        text = tokenizer.decode([token])
        if text.isalpha() and text.isascii() and token not in tokenizer.all_special_ids:
            assert marks[token] == COUNTS, text
        if text.isspace():
            assert marks[token] == BEGINS | ENDS
        if text in tuple(".,-("):
            assert marks[token] == 0
    # What the tokenizer lacks is a word of its own.
    assert set(marks[len(tokenizer) :].tolist()) <= {BEGINS | ENDS | COUNTS}


@pytest.mark.instruct
def test_a_store_keeps_what_its_tokens_are_when_documents_are_removed(instruct, tmp_path):
    model, tokenizer = instruct
    store = knn_logits.build_datastore(model, tokenizer, HANDBOOK, tmp_path / "handbook")
    assert store.words.dtype == np.uint8
    knn_logits.remove_documents(store, [store.documents[3].shown.id])
    small = knn_logits.compact(store.folder)
    assert small.words.tolist() == store.words.tolist()
    assert damage(small.folder, small.manifest) == []
