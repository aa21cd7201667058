"""RetoMaton in `generate()`: each chosen token against the automaton run on the chosen tokens."""

import shutil

import numpy as np
import pytest
import torch
from automaton import ByTheBook
from conftest import TEXTS
from mixture_reference import used

from knn_logits import Datastore, KNNConfig, KNNLogitsProcessor, cluster
from knn_logits.engine.forward import key_states_and_logits

SETTINGS = {"k": 12, "lmbda": 0.6, "temperature": 4.0}
PROMPTS = [
    "The harbour crane",
    "When error code",
    "In 1312",
    "Each morning the keeper reads the",
    "E42",
    "The pump needs oil of grade seven. The crane",
    "a",
    "Queen Maira founded the town",
]


@pytest.fixture(scope="module", params=["pointers", "clusters"])
def memory(request, store, tmp_path_factory):
    if request.param == "pointers":
        return store
    folder = tmp_path_factory.mktemp("clustered") / "s"
    shutil.copytree(store.folder, folder)
    return cluster(Datastore(folder), 20)


def by_the_book(model, location, store, ids, first):
    """p of each token from `first` on, and whether its step searched, by loops in float64."""
    config = KNNConfig(**SETTINGS, retomaton=True)
    book = ByTheBook(store, config)
    states, logits = key_states_and_logits(model, location, {"input_ids": torch.tensor([ids])})
    log_p = torch.log_softmax(logits[0].double(), dim=-1)
    found = []
    for place in range(first, len(ids)):
        before = book.searches
        book.step(states[0, place - 1], ids[place - 1])
        p_lm = float(log_p[place - 1, ids[place]].exp())
        p = config.lmbda * book.p_knn(ids[place]) + (1 - config.lmbda) * p_lm
        found.append((p, book.searches > before))
    return found


MODES = {
    "greedy": {},
    "batch": {"prompts": PROMPTS},
    "sampling": {"do_sample": True, "prompts": PROMPTS[:4]},
    "beams of a batch": {"num_beams": 3, "num_return_sequences": 2, "prompts": PROMPTS[:2]},
    "no cache": {"use_cache": False},
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_follows_its_own_text(model, tokenizer, memory, mode):
    settings = dict(MODES[mode])
    prompts = settings.pop("prompts", PROMPTS[:1])
    tokenizer.padding_side = "left"
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    torch.manual_seed(1)
    with KNNLogitsProcessor(model, memory, **SETTINGS, retomaton=True) as knn:
        output = model.generate(
            **inputs,
            max_new_tokens=20,
            logits_processor=[knn],
            return_dict_in_generate=True,
            output_scores=True,
            **{"do_sample": False, **settings},
        )
        beams = "num_beams" in settings
        traces = None if beams else knn.trace(output, tokenizer)
    length = inputs["input_ids"].shape[1]
    per_prompt = settings.get("num_return_sequences", 1)
    followed = 0
    for number, ids in enumerate(output.sequences.tolist()):
        start = int((inputs["attention_mask"][number // per_prompt] == 0).sum())
        expected = by_the_book(model, knn.memory.location, memory, ids[start:], length - start)
        if traces is None:  # beam search is not recorded
            found = np.exp(used(output, number, length, beams=True))
            assert found == pytest.approx([p for p, _ in expected][: len(found)], abs=1e-4)
            followed = len(found)
            continue
        for token, (p, searched) in zip(traces[number].tokens, expected, strict=False):
            assert token.p == pytest.approx(p, abs=1e-4)
            assert token.retrieval == ("search" if searched else "pointers")
            followed += not searched
    assert followed > 5


def test_assistance_changes_nothing(model, tokenizer, memory):
    text = TEXTS[0] + " " + TEXTS[0][:40]
    inputs = tokenizer(text, return_tensors="pt")
    outputs = []
    for extra in ({}, {"prompt_lookup_num_tokens": 4}, {"assistant_model": model}):
        with KNNLogitsProcessor(model, memory, **SETTINGS, retomaton=True) as knn:
            outputs.append(
                model.generate(
                    **inputs, max_new_tokens=24, do_sample=False, logits_processor=[knn], **extra
                ).tolist()
            )
    assert outputs[0] == outputs[1] == outputs[2]


def test_several_datastores_each_follow_their_own(model, tokenizer, memory, store):
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    with KNNLogitsProcessor(model, [memory, store], **SETTINGS, retomaton=True) as knn:
        output = model.generate(
            **inputs, max_new_tokens=16, do_sample=False, logits_processor=[knn]
        )
        tokens = knn.trace(output, tokenizer)[0].tokens
    assert any(token.retrieval == "pointers" for token in tokens)
    for token in tokens:
        share = token.influence + (1 - token.lmbda) * token.p_lm / token.p
        assert share == pytest.approx(1.0, abs=1e-5)


def first_scores(model, knn, **inputs):
    return model.generate(
        **inputs,
        max_new_tokens=8,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        logits_processor=[knn],
        return_dict_in_generate=True,
        output_scores=True,
    )


@pytest.mark.parametrize("use_cache", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_a_prompt_that_an_earlier_text_went_through_starts_anew(
    model, tokenizer, memory, tokens, use_cache
):
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    with KNNLogitsProcessor(model, memory, **SETTINGS, retomaton=True) as knn:
        earlier = first_scores(model, knn, use_cache=use_cache, **inputs).sequences
        prompt = earlier[:, : inputs["input_ids"].shape[1] + tokens]
        given = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
        used = first_scores(model, knn, use_cache=use_cache, **given)
        trace = knn.trace(used, tokenizer)
    with KNNLogitsProcessor(model, memory, **SETTINGS, retomaton=True) as knn:
        fresh = first_scores(model, knn, use_cache=use_cache, **given)
    assert trace[0].tokens[0].retrieval == "search"
    for one, other in zip(used.scores, fresh.scores, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
