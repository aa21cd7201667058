"""Limits and deadlines, for whoever runs the library for others."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from knn_logits.errors import LimitError
from knn_logits.hosting import Deadline, Limits


def test_what_is_within_the_limits_passes_and_what_is_beyond_is_named():
    limits = Limits(prompt_tokens=10, new_tokens=5, text_bytes=100)
    limits.check(prompt_tokens=10, new_tokens=5, text_bytes=100, context=15)
    for given, message in (
        ({"prompt_tokens": 11}, "11 tokens; the limit is 10"),
        ({"new_tokens": 6}, "6 new tokens"),
        ({"text_bytes": 101}, "101 bytes"),
        ({"prompt_tokens": 9, "new_tokens": 5, "context": 13}, "context of 13"),
    ):
        with pytest.raises(LimitError, match=message):
            limits.check(**given)


def test_a_deadline_is_over_when_its_time_is_up_or_it_is_cancelled():
    late, open_ended = Deadline(0.0), Deadline()
    assert late.over
    assert late.expired
    assert not late.cancelled
    assert not open_ended.over
    assert not Limits(seconds=60).deadline().over
    open_ended.cancel()
    assert open_ended.over
    assert not open_ended.expired
    with pytest.raises(LimitError, match="time limit of 0 seconds"):
        late.check()
    with pytest.raises(LimitError, match="stopped"):
        open_ended.check()


def test_a_deadline_ends_generate(model, ids):
    settings = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": None}
    ended = model.generate(ids, stopping_criteria=[Deadline(0.0)], **settings)
    assert ended.shape[1] == ids.shape[1] + 1
    whole = model.generate(ids, stopping_criteria=[Deadline(60)], **settings)
    assert whole.shape[1] == ids.shape[1] + 20
    answer = Deadline(0.0)(torch.zeros(3, 4, dtype=torch.int64), None)
    assert answer.tolist() == [True] * 3


def test_a_deadline_ends_a_build_from_another_thread(build, tmp_path):
    deadline = Deadline()
    told = []

    def progress(phase, done, total):
        told.append((phase, done, total))
        with ThreadPoolExecutor(1) as thread:
            thread.submit(deadline.cancel).result()

    with pytest.raises(LimitError, match="stopped"):
        build(["The pump is new."] * 9, tmp_path / "store", progress=deadline.watch(progress))
    assert len(told) == 1
