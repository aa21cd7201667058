"""Other passes of the same model around a step, and loops that are not `generate()`'s."""

import copy
import logging

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList, StoppingCriteria

from knn_logits import KNNLogitsProcessor

PROMPT = "The harbour crane"
WARNING = "kNN is off"


def greedy(model, tokenizer, *processors, **settings):
    return model.generate(
        **tokenizer(PROMPT, return_tensors="pt"),
        **{"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        | settings,
        logits_processor=list(processors),
        return_dict_in_generate=True,
        output_scores=True,
    )


def agree(one, other):
    assert torch.equal(one.sequences, other.sequences)
    for first, second in zip(one.scores, other.scores, strict=True):
        torch.testing.assert_close(first, second, atol=1e-4, rtol=1e-4)


@pytest.fixture
def knn(mine, store):
    with KNNLogitsProcessor(mine, store, k=16, lmbda=0.7, temperature=2.0) as processor:
        yield processor


class OtherWeights(LogitsProcessor):
    """Runs a model over whole texts as if an adapter were off: its states are other ones."""

    def __init__(self, model):
        self.model = model

    def __call__(self, input_ids, scores):
        weight = self.model.transformer.h[0].mlp.c_fc.weight
        weight.data.mul_(2.0)
        with torch.no_grad():
            self.model(input_ids, use_cache=False)
        weight.data.mul_(0.5)
        return scores


class Watches(OtherWeights, StoppingCriteria):
    def __call__(self, input_ids, scores, **_):
        super().__call__(input_ids, scores)
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("place", ["before", "behind", "stops"])
def test_a_pass_of_other_code_is_never_taken(mine, tokenizer, knn, use_cache, place):
    expected = greedy(mine, tokenizer, knn, use_cache=use_cache)
    other, watch = OtherWeights(mine), Watches(mine)
    processors = {"before": [other, knn], "behind": [knn, other], "stops": [knn]}[place]
    stops = {"stopping_criteria": [watch] * 4} if place == "stops" else {}
    found = greedy(mine, tokenizer, *processors, use_cache=use_cache, **stops)
    agree(found, expected)
    assert len(knn.trace(found, tokenizer)[0].tokens) == 6


# Loops of the user's own


@pytest.mark.parametrize("grad", [True, False], ids=["gradients on", "gradients off"])
@pytest.mark.parametrize("listed", [True, False], ids=["in a list", "by itself"])
@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
def test_a_loop_of_the_users_own(mine, tokenizer, knn, caplog, grad, listed, cached):
    expected = greedy(mine, tokenizer, knn)
    processor = LogitsProcessorList([knn]) if listed else knn
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    for _ in range(2):
        text, new, cache = ids, ids, DynamicCache(config=mine.config) if cached else None
        with torch.set_grad_enabled(grad):
            for step in range(6):
                logits = mine(new if cached else text, past_key_values=cache, use_cache=cached)
                scores = processor(text, logits.logits[:, -1].float())
                torch.testing.assert_close(scores, expected.scores[step], atol=1e-4, rtol=1e-4)
                new = scores.argmax(-1, keepdim=True)
                text = torch.cat([text, new], dim=-1)
        assert torch.equal(text, expected.sequences)
    assert WARNING not in caplog.text


# Where nothing can be mixed in, the processor says so


def warnings_of(caplog):
    return [one for one in caplog.records if WARNING in one.getMessage()]


def test_a_copy_of_the_model_is_told(mine, tokenizer, knn, caplog):
    copied = copy.deepcopy(mine)
    with caplog.at_level(logging.WARNING):
        plain = greedy(copied, tokenizer)
        found = greedy(copied, tokenizer, knn)
        greedy(copied, tokenizer, knn)
    agree(found, plain)
    (warning,) = warnings_of(caplog)
    assert "not of a copy" in warning.getMessage()


def test_training_mode_with_gradients_is_told(mine, knn, ids, caplog):
    mine.train()
    scores = mine(ids).logits[:, -1]
    assert knn(ids, scores) is scores
    assert len(warnings_of(caplog)) == 1


class Within(LogitsProcessor):
    """Generates with the same processor within a step of another generation."""

    def __init__(self, model, tokenizer, knn):
        self.call = lambda: model.generate(
            **tokenizer("A dog", return_tensors="pt"),
            max_new_tokens=2,
            do_sample=False,
            pad_token_id=0,
            logits_processor=[knn],
        )

    def __call__(self, input_ids, scores):
        self.call()
        return scores


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_generation_within_another_leaves_its_trace_whole(mine, tokenizer, knn, place):
    alone = greedy(mine, tokenizer, knn)
    tokens = [one.token for one in knn.trace(alone, tokenizer)[0].tokens]
    within = Within(mine, tokenizer, knn)
    output = greedy(mine, tokenizer, *([within, knn] if place == "before" else [knn, within]))
    assert torch.equal(output.sequences, alone.sequences)
    assert [one.token for one in knn.trace(output, tokenizer)[0].tokens] == tokens
