"""Generates with a processor, and returns the states that its hooks find."""

import torch

import knn_logits
from knn_logits.engine.forward import key_states
from knn_logits.engine.location import find_key


def attach(model, store, **settings):
    return knn_logits.KNNLogitsProcessor(model, store, **settings)


def greedy(model, ids, *processors, **settings):
    return model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        logits_processor=list(processors),
        do_sample=False,
        max_new_tokens=6,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )


def same(one, other):
    """Whether two generations are the same, token by token and score by score."""
    return torch.equal(one.sequences, other.sequences) and all(
        torch.allclose(a, b, atol=1e-4) for a, b in zip(one.scores, other.scores, strict=True)
    )


def run(model, ids, cache=None, **arguments):
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache, use_cache=cache is not None, **arguments)


def found(capture, ids):
    """Returns the state that a call's scores came from, [rows, dim]."""
    window, position, _ = capture.find(ids)
    return window.states[:, position]


def all_states(model, ids):
    return key_states(model, find_key(model), {"input_ids": ids})


def some_ids(rows, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 384, (rows, tokens), generator=generator)


def close(one, other):
    return torch.allclose(one, other, atol=1e-4)
