"""Texts that a model writes by itself during a build."""

import copy

import pytest
import torch

from knn_logits.building.own_texts import (
    ANSWER_TOKENS,
    BEGINNINGS,
    QUESTIONS,
    SAMPLED_TOKENS,
    own_texts,
)

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture
def chatting(tokenizer):
    other = copy.deepcopy(tokenizer)
    other.chat_template = TEMPLATE
    return other


def test_the_model_continues_beginnings_and_answers_questions(model, tokenizer, chatting):
    plain, texts = own_texts(model, tokenizer), own_texts(model, chatting)
    assert len(plain) == len(BEGINNINGS)
    assert texts[: len(plain)] == plain
    assert len(texts) == len(BEGINNINGS) + len(QUESTIONS)
    limits = [SAMPLED_TOKENS] * len(BEGINNINGS) + [ANSWER_TOKENS] * len(QUESTIONS)
    prompts = [*BEGINNINGS, *(f"user: {question}\n" for question in QUESTIONS)]
    for (ids, given), prompt, limit in zip(texts, prompts, limits, strict=True):
        assert ids[:given] == tokenizer(prompt)["input_ids"]
        written = ids[given:]
        assert len(written) == limit or written[-1] == tokenizer.eos_token_id
        assert tokenizer.eos_token_id not in written[:-1]
    # An answer is greedy.
    ids, given = texts[-1]
    with torch.no_grad():
        best = model(torch.tensor([ids])).logits[0].argmax(-1)
    assert best[given - 1 : -1].tolist() == ids[given:]


def test_the_seed_makes_it_repeatable_and_leaves_the_generator_alone(model, tokenizer):
    state = torch.get_rng_state()
    assert own_texts(model, tokenizer, 3) == own_texts(model, tokenizer, 3)
    assert own_texts(model, tokenizer, 3) != own_texts(model, tokenizer, 4)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_that_cannot_write_gives_no_texts(
    model, tokenizer, marian, pair_tokenizer, monkeypatch
):
    assert own_texts(marian, pair_tokenizer) == []
    assert own_texts(torch.nn.Linear(2, 2), tokenizer) == []
    # The context has no room for a beginning and enough new tokens.
    monkeypatch.setattr(model.config, "n_positions", 20)
    assert own_texts(model, tokenizer) == []
