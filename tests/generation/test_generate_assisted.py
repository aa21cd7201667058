"""Prompt lookup and assistants: the mixture decides which candidates are accepted."""

import pytest
import torch
from conftest import TEXTS, make_gpt2
from mixture_reference import (
    LMBDA,
    PROMPTS,
    SETTINGS,
    TEMPERATURE,
    K,
    encode,
    generate_checked,
    make_assistant,
)
from transformers import LogitsProcessor

from knn_logits import KNNLogitsProcessor


@pytest.mark.parametrize("prompt", [TEXTS[1] + " When error code", "________", "a a a a a a a a"])
def test_prompt_lookup(model, tokenizer, memory, knn, prompt):
    inputs = encode(tokenizer, [prompt])
    plain = model.generate(**inputs, **SETTINGS, do_sample=False, logits_processor=[knn])
    output, _ = generate_checked(model, tokenizer, memory, knn, inputs, prompt_lookup_num_tokens=4)
    assert output.sequences.tolist() == plain.sequences.tolist()


class Biased(LogitsProcessor):
    """Makes a model repeat itself, so that prompt lookup finds candidates."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores.scatter_add_(1, input_ids[:, -12:-11], torch.full((len(scores), 1), 30.0))
        return scores


def test_prompt_lookup_with_accepted_candidates(model, tokenizer, knn):
    inputs = encode(tokenizer, [TEXTS[4]])
    settings = {"do_sample": False, "max_new_tokens": 40, "logits_processor": [Biased(), knn]}
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    plain = model.generate(**inputs, **settings)
    steps = len(calls)
    assisted = model.generate(**inputs, **settings, prompt_lookup_num_tokens=5)
    handle.remove()
    # Some releases of transformers accept more candidates than there is room for.
    assert assisted[:, : plain.shape[1]].tolist() == plain.tolist()
    assert len(calls) - steps < steps
    assert knn.trace(assisted, tokenizer)[0].tokens


@pytest.mark.parametrize("close", [True, False], ids=["like the model", "unlike the model"])
def test_assisted_by_a_smaller_model(model, tokenizer, memory, knn, close):
    assistant = make_assistant() if close else make_gpt2(seed=5, layers=1)
    inputs = encode(tokenizer, PROMPTS[4:5])
    plain = model.generate(**inputs, **SETTINGS, do_sample=False, logits_processor=[knn])
    for _ in range(2):
        output, _ = generate_checked(
            model, tokenizer, memory, knn, inputs, assistant_model=assistant
        )
        assert output.sequences.tolist() == plain.sequences.tolist()


def test_an_assistants_own_calls_are_left_alone(model, tokenizer, store):
    assistant = make_gpt2(seed=5, layers=1)
    seen = []

    class Spy(KNNLogitsProcessor):
        def __call__(self, input_ids, scores):
            answer = super().__call__(input_ids, scores)
            seen.append(answer is scores)
            return answer

    inputs = encode(tokenizer, PROMPTS[4:5])
    with Spy(model, store, k=K, lmbda=LMBDA, temperature=TEMPERATURE) as knn:
        for _ in range(2):
            seen.clear()
            output = model.generate(
                **inputs,
                max_new_tokens=12,
                do_sample=False,
                assistant_model=assistant,
                logits_processor=[knn],
            )
            assert any(seen)
            assert not all(seen)
            # Until the model's first forward pass only the assistant asks.
            assert seen[0]
    assert output.shape[1] > inputs["input_ids"].shape[1]
