"""Texts that share passes are those that they are alone, whenever they come and go."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from conftest import TEXTS, make_gpt2
from transformers import StoppingCriteria

import knn_logits
from knn_logits import KNNLogitsProcessor
from knn_logits_serve.shared_passes import SharedPasses

PROMPTS = [
    "When error code E42 appears, open",
    "The keeper reads",
    "Queen Maira founded the town of Oldenport in the year 1312. The pump needs oil of",
    "The pump needs oil. The pump needs oil. The pump",
    "Zebras",
    "Each morning the",
]
LENGTHS = [40, 7, 33, 1, 24, 16]


class Passes:
    """Counts the rows of each pass of a model."""

    def __init__(self, model, monkeypatch):
        self.rows = []
        forward = model.transformer.forward

        def counted(*args, **kwargs):
            ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
            self.rows.append(ids.shape[0])
            return forward(*args, **kwargs)

        monkeypatch.setattr(model.transformer, "forward", counted)


def at_once(*tasks):
    """Runs tasks in threads, all of which begin before any goes on."""
    ready = threading.Barrier(len(tasks))

    def run(task):
        ready.wait(30)
        return task()

    with ThreadPoolExecutor(len(tasks)) as threads:
        return [one.result(60) for one in [threads.submit(run, task) for task in tasks]]


def settings_of(number):
    return {"max_new_tokens": LENGTHS[number], "do_sample": False, "pad_token_id": 0}


@pytest.fixture(params=["plain", "retomaton", "two"])
def memory(request, model, tokenizer, store, tmp_path):
    """What is searched, and how."""
    settings = {"k": 16, "lmbda": 0.7, "temperature": 3.0}
    if request.param == "two":
        other = knn_logits.build_datastore(model, tokenizer, TEXTS[:3], tmp_path / "o", k=4)
        store = [store, other]
    return knn_logits.Memory(model, store, **settings, retomaton=request.param == "retomaton")


def test_each_text_and_trace_is_that_of_the_text_alone(model, tokenizer, memory, monkeypatch):
    shared = SharedPasses(model)
    assert shared.possible

    with KNNLogitsProcessor(model, memory) as knn:

        def write(number, passes=None):
            inputs = tokenizer(PROMPTS[number], return_tensors="pt")
            output = knn.generate(**inputs, **settings_of(number), passes=passes)
            return output, knn.trace(output, tokenizer)[0]

        alone = [write(number) for number in range(len(PROMPTS))]
        passes = Passes(model, monkeypatch)
        found = at_once(
            *(lambda number=number: write(number, shared.row) for number in range(len(PROMPTS)))
        )
    assert max(passes.rows) >= 4
    assert len(passes.rows) < sum(LENGTHS) / 3
    assert not shared.cache.lengths
    for (ids, trace), (others, same) in zip(alone, found, strict=True):
        assert ids.tolist() == others.tolist()
        for one, other in zip(trace.tokens, same.tokens, strict=True):
            assert one.token_id == other.token_id
            assert one.p == pytest.approx(other.p, abs=1e-4)
            assert [d.document for d in one.documents] == [d.document for d in other.documents]


def test_texts_of_the_model_alone_share_passes_with_others(model, tokenizer, memory, monkeypatch):
    shared = SharedPasses(model)
    with KNNLogitsProcessor(model, memory) as knn:

        def write(number, *, is_shared):
            generate = knn.generate if number % 2 else model.generate
            if is_shared:
                generate = (
                    partial(knn.generate, passes=shared.row) if number % 2 else shared.generate
                )
            inputs = tokenizer(PROMPTS[number], return_tensors="pt")
            return generate(**inputs, **settings_of(number)).tolist()

        numbers = range(len(PROMPTS))
        alone = [write(number, is_shared=False) for number in numbers]
        passes = Passes(model, monkeypatch)
        assert at_once(*(partial(write, number, is_shared=True) for number in numbers)) == alone
    assert max(passes.rows) >= 4
    assert not shared.cache.lengths


class When(StoppingCriteria):
    """Calls a function at a length; its result says whether the text ends there."""

    def __init__(self, length, function):
        self._length, self._function = length, function

    def __call__(self, input_ids, scores, **_):
        ends = input_ids.shape[1] == self._length and self._function()
        return torch.full((len(input_ids),), bool(ends))


def test_a_text_joins_in_the_middle_and_another_is_cancelled(model, tokenizer, store):
    shared = SharedPasses(model)
    with KNNLogitsProcessor(model, store) as knn, ThreadPoolExecutor(3) as threads:

        def write(number, passes=None, **more):
            inputs = tokenizer(PROMPTS[number], return_tensors="pt")
            settings = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}
            return knn.generate(**inputs, **settings, **more, passes=passes).tolist()[0]

        alone = [write(number) for number in range(3)]
        start = len(tokenizer(PROMPTS[0])["input_ids"])
        later, counts = [], []

        def joined():
            later.append(threads.submit(write, 2, shared.row))

        def counted():
            counts.append(len(shared.cache.lengths))
            return True

        first = threads.submit(write, 0, shared.row, stopping_criteria=[When(start + 3, joined)])
        length = len(tokenizer(PROMPTS[1])["input_ids"]) + 9
        cancelled = threads.submit(write, 1, shared.row, stopping_criteria=[When(length, counted)])
        assert first.result(60) == alone[0]
        assert cancelled.result(60) == alone[1][:length]
        assert later[0].result(60) == alone[2]
    assert counts
    assert not shared.cache.lengths


def test_a_text_that_fails_leaves_the_others_alone(model, tokenizer, store):
    shared = SharedPasses(model)

    def fails():
        raise RuntimeError("a client's own")

    with KNNLogitsProcessor(model, store) as knn:

        def write(number, passes=None, **more):
            inputs = tokenizer(PROMPTS[number], return_tensors="pt")
            settings = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}
            return knn.generate(**inputs, **settings, **more, passes=passes).tolist()

        alone = [write(number) for number in (0, 2)]
        length = len(tokenizer(PROMPTS[1])["input_ids"]) + 5

        def failing():
            with pytest.raises(RuntimeError, match="own"):
                write(1, shared.row, stopping_criteria=[When(length, fails)])

        tasks = (lambda: write(0, shared.row), failing, lambda: write(2, shared.row))
        assert [one for one in at_once(*tasks) if one] == alone
    assert not shared.cache.lengths


def test_a_pass_that_fails_ends_each_of_its_texts(model, tokenizer, store, monkeypatch):
    shared, forward = SharedPasses(model), model.transformer.forward
    share, begun = shared.row, threading.Barrier(3)

    def row(capture):
        begun.wait(30)  # a text that came after the others had failed would be alone
        return share(capture)

    def fails(*args, **kwargs):
        if len(kwargs["input_ids"] if "input_ids" in kwargs else args[0]) == 3:
            raise MemoryError("too much")
        return forward(*args, **kwargs)

    monkeypatch.setattr(shared, "row", row)
    monkeypatch.setattr(model.transformer, "forward", fails)
    with KNNLogitsProcessor(model, store) as knn:

        def write():
            inputs = tokenizer(PROMPTS[0], return_tensors="pt")
            with pytest.raises(MemoryError, match="too much"):
                knn.generate(**inputs, **settings_of(0), passes=shared.row)

        at_once(write, write, write)
    assert not shared.cache.lengths


def test_what_cannot_be_shared_is_written_alone(model, tokenizer, store, monkeypatch):
    half = make_gpt2().to(torch.bfloat16)
    assert not SharedPasses(half).possible
    shared = SharedPasses(model)
    inputs = tokenizer(PROMPTS[:2], return_tensors="pt", padding=True)
    single = tokenizer(PROMPTS[0], return_tensors="pt")
    with KNNLogitsProcessor(model, store) as knn:
        shifted = {"position_ids": torch.arange(3, 3 + single["input_ids"].shape[1])[None]}
        for arguments in (inputs, single | shifted):
            alone = knn.generate(**arguments, **settings_of(1))
            found = knn.generate(**arguments, **settings_of(1), passes=shared.row)
            assert alone.tolist() == found.tolist()
