"""Where drafts come from: the text itself, passages, and how often each was right."""

from dataclasses import replace

import pytest
import torch
from conftest import TEXTS
from hypothesis import given
from hypothesis import strategies as st

from knn_logits import KNNLogitsProcessor
from knn_logits.generation.drafts import Drafter


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 8))
def test_a_text_goes_on_as_its_longest_repeated_end_did(ids, most):
    def longest():
        best, found = 1, []
        for place in range(len(ids) - 2, -1, -1):
            same = 0
            while same < 6 and same <= place and ids[place - same] == ids[-1 - same]:
                same += 1
            if same > best:
                best, found = same, ids[place + 1 : place + 1 + most]
        return found

    assert Drafter.from_text(ids, most) == longest()


@pytest.mark.parametrize("most", [1, 5])
def test_the_memory_drafts_what_follows_in_its_passages(model, tokenizer, store, most):
    inputs = tokenizer("When error code E42 appears, open the", return_tensors="pt")
    with KNNLogitsProcessor(model, store, k=16, lmbda=0.9, temperature=0.1) as knn:
        output = knn.generate(**inputs, max_new_tokens=1, do_sample=False, draft=False)
        drafter = Drafter(knn.memory)
        text = output[0].tolist()
        drafter._sources["memory"].rate = 0.99 if most > 1 else 0.3
        drafted = drafter.draft(text, knn.vote)
        best = int(knn.vote.log_weights[0].argmax())
        entry = int(knn.vote.neighbors.ids[0, best])
        assert int(knn.vote.neighbors.values[0, best]) == text[-1]
        following = store.values[entry + 1 : entry + 1 + most].tolist()
        assert drafted[:most] == following
        assert len(drafted) >= most
        assert Drafter(knn.memory).draft([*text[:-1], 0], None) == []
    assert torch.is_tensor(output)


@pytest.mark.parametrize(
    ("matched", "room", "length"), [(12, 24, 12), (12, 3, 3), (0, 24, 0), (60, 60, 48)]
)
def test_a_draft_has_room_and_is_as_long_as_what_the_text_shares(
    model, tokenizer, store, matched, room, length
):
    """Also a source that had no success drafts so, once a passage is followed word for word."""
    inputs = tokenizer(TEXTS[0][:30], return_tensors="pt")
    with KNNLogitsProcessor(model, store, k=1, lmbda=0.9, temperature=0.1) as knn:
        output = knn.generate(**inputs, max_new_tokens=1, do_sample=False, draft=False)
        shared = torch.full_like(knn.vote.neighbors.ids, matched)
        vote = replace(knn.vote, neighbors=replace(knn.vote.neighbors, matched=shared))
        drafter = Drafter(knn.memory)
        for source in drafter._sources.values():
            source.rate = 0.0
        assert len(drafter.draft(output[0].tolist(), vote, room)) == length
