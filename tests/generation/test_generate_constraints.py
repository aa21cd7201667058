"""A token that another processor forbids stays forbidden, however the ban is written."""

import pytest
import torch
from conftest import TEXTS
from transformers import LogitsProcessor

from knn_logits import KNNLogitsProcessor

PROMPT = "The harbour crane"


@pytest.fixture
def sure(model, store):
    """A processor whose neighbors decide, so that a ban is what stands against them."""
    with KNNLogitsProcessor(model, store, k=16, lmbda=0.99, temperature=0.5) as knn:
        yield knn


def greedy(model, tokenizer, *processors, tokens=1, text=PROMPT, **settings):
    return model.generate(
        **tokenizer(text, return_tensors="pt"),
        max_new_tokens=tokens,
        do_sample=False,
        logits_processor=list(processors),
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )


class Masks(LogitsProcessor):
    """Forbids a token as users' own processors do: by a low number in its place."""

    def __init__(self, token, number):
        self.token, self.number = token, number

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, self.token] = self.number
        return scores


def is_forbidden(output, token):
    scores = output.scores[0][0]
    assert float(scores.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    return float(scores[token].double().exp()) == 0.0


@pytest.mark.parametrize("removes", [False, True], ids=["", "remove_invalid_values"])
@pytest.mark.parametrize("beams", [1, 3])
def test_bad_words(model, tokenizer, sure, removes, beams):
    wanted = int(greedy(model, tokenizer, sure).sequences[0, -1])
    settings = {"remove_invalid_values": removes, "num_beams": beams}
    output = greedy(model, tokenizer, sure, bad_words_ids=[[wanted]], **settings)
    assert int(output.sequences[0, -1]) != wanted
    assert is_forbidden(output, wanted)


@pytest.mark.parametrize(
    "number",
    [
        float("-inf"),
        torch.finfo(torch.float32).min,
        torch.finfo(torch.float16).min,
        torch.finfo(torch.bfloat16).min,
        -1e4,
    ],
)
@pytest.mark.parametrize("beams", [1, 3])
def test_masks_of_users(model, tokenizer, sure, number, beams):
    wanted = int(greedy(model, tokenizer, sure).sequences[0, -1])
    output = greedy(model, tokenizer, Masks(wanted, number), sure, num_beams=beams)
    assert int(output.sequences[0, -1]) != wanted
    assert is_forbidden(output, wanted)


@pytest.mark.parametrize("end", [0, 2, torch.tensor([0, 2]), 50_256, -1, [0, 50_256]])
def test_end_tokens_of_every_kind(mine, store, tokenizer, end):
    mine.generation_config.eos_token_id = end
    with KNNLogitsProcessor(mine, store, lmbda=0.9) as knn:
        # A tensor is no setting for `generate` itself, which is given numbers.
        given = {"eos_token_id": None} if not isinstance(end, int) or end < 0 else {}
        output = greedy(mine, tokenizer, knn, tokens=4, pad_token_id=0, **given)
        trace = knn.trace(output, tokenizer)
    assert len(trace[0].tokens) == 4


class Only(LogitsProcessor):
    """Forbids all tokens but some."""

    def __init__(self, *tokens):
        self.tokens = list(tokens)

    def __call__(self, input_ids, scores):
        allowed = torch.full_like(scores, -torch.inf)
        allowed[:, self.tokens] = scores[:, self.tokens]
        return allowed


@pytest.mark.parametrize("draft", [False, True])
def test_a_constraint_before_the_processor_holds_for_the_memory(model, tokenizer, store, draft):
    inputs = tokenizer(TEXTS[0][:40], return_tensors="pt")
    settings = {**inputs, "max_new_tokens": 12, "do_sample": False, "draft": draft}
    with KNNLogitsProcessor(model, store, lmbda=0.9, k=16, temperature=0.5) as knn:
        free = knn.generate(**settings)[0, inputs["input_ids"].shape[1] :].tolist()
        allowed = [token for token in range(40, 60) if token not in free]
        output = knn.generate(**settings, logits_processor=[Only(*allowed), knn])
        written = output[0, inputs["input_ids"].shape[1] :].tolist()
        traced = knn.trace(output, tokenizer)[0].tokens
    assert set(written) <= set(allowed)
    # The vote came after the constraint, so it is of the allowed tokens alone.
    assert all(0 < token.p <= 1 for token in traced)
    assert sum(token.p for token in traced) > 12 / len(allowed)
