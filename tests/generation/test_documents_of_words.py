"""The documents behind a token while it is written, and constraints before the vote."""

import pytest
import torch
from conftest import TEXTS
from transformers import LogitsProcessor
from transformers.generation.streamers import BaseStreamer

from knn_logits import KNNLogitsProcessor

STRONG = {"lmbda": 0.9, "k": 16, "temperature": 0.5}


class Listener(BaseStreamer):
    """Asks for the documents of each token when `generate()` passes it on."""

    def __init__(self, knn):
        self.knn, self.prompt, self.heard = knn, True, []

    def put(self, value):
        if not self.prompt:
            self.heard += [self.knn.documents(token) for token in value.reshape(-1).tolist()]
        self.prompt = False

    def end(self):
        pass


@pytest.mark.parametrize("draft", [False, True])
def test_they_are_those_of_the_trace(model, tokenizer, store, draft):
    inputs = tokenizer(TEXTS[0][:40], return_tensors="pt")
    with KNNLogitsProcessor(model, store, **STRONG) as knn:
        assert knn.documents(1) == []
        listener = Listener(knn)
        output = knn.generate(
            **inputs, max_new_tokens=24, do_sample=False, streamer=listener, draft=draft
        )
        traced = knn.trace(output, tokenizer)[0].tokens
    assert any(len(shares) > 1 for shares in listener.heard)
    for token, shares in zip(traced, listener.heard, strict=True):
        assert [share.document for share in shares] == [one.document for one in token.documents]
        for share, expected in zip(shares, token.documents, strict=True):
            assert share.share == pytest.approx(expected.share, abs=1e-5)
            assert (share.store, share.title) == (expected.store, expected.title)


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
    with KNNLogitsProcessor(model, store, **STRONG) as knn:
        free = knn.generate(**settings)[0, inputs["input_ids"].shape[1] :].tolist()
        allowed = [token for token in range(40, 60) if token not in free]
        output = knn.generate(**settings, logits_processor=[Only(*allowed), knn])
        written = output[0, inputs["input_ids"].shape[1] :].tolist()
        traced = knn.trace(output, tokenizer)[0].tokens
    assert set(written) <= set(allowed)
    # The vote came after the constraint, so it is of the allowed tokens alone.
    assert all(0 < token.p <= 1 for token in traced)
    assert sum(token.p for token in traced) > 12 / len(allowed)
