"""Requests share forward passes, and each gets what it would get alone."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from knn_logits_serve.bodies import ChatBody, CompletionBody
from knn_logits_serve.line import Line
from knn_logits_serve.writing import shares
from serve.conftest import PROMPT, Held, sent, serving
from serve.test_many import PROMPTS, until


@pytest.fixture
def passes(served, monkeypatch):
    """The server's passes of the model."""
    found = Held(served.model.transformer, "forward", monkeypatch)
    yield found
    found.go()


def body(**changed):
    return {"model": "tiny+texts", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **changed}


def answer_of(url, asked):
    """Returns the text, the reason of its end and its sources, streamed or not."""
    answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=60)
    assert answer.status_code == 200, answer.text
    if not asked.get("stream"):
        choice = answer.json()["choices"][0]
        return choice["text"], choice["finish_reason"], choice.get("sources")
    lines = [one.removeprefix("data: ") for one in answer.text.split("\n\n") if one]
    assert lines[-1] == "[DONE]"
    choices = [json.loads(one)["choices"][0] for one in lines[:-1]]
    text = "".join(one["text"] for one in choices)
    return text, choices[-1]["finish_reason"], choices[-1].get("sources")


REQUESTS = [
    body(),
    body(prompt=PROMPTS[1], max_tokens=3, stream=True),
    body(prompt=PROMPTS[2], temperature=1, seed=4, top_p=0.9),
    body(prompt=PROMPTS[3], stop=["e"], stream=True),
    body(knn={"k": 3, "lmbda": 0.5}),
    body(prompt=PROMPTS[1], presence_penalty=1.0, logprobs=2),
    body(prompt=PROMPTS[2] + " of the north, who built a wall", max_tokens=1),
    body(prompt=PROMPTS[3], temperature=0.7, seed=1, stream=True),
]
ALONE = [
    body(model="tiny"),
    body(model="tiny", prompt=PROMPTS[1], max_tokens=9, stream=True),
    body(model="tiny", prompt=PROMPTS[2], temperature=1, seed=4),
    body(model="tiny", prompt=PROMPTS[3], stop=["e"]),
]


def test_each_gets_what_it_would_get_alone(served, passes, by_library):
    requests = [*REQUESTS, *ALONE]
    with serving(served, at_once=1, waiting=20, together=len(requests)) as running:
        with ThreadPoolExecutor(len(requests)) as threads:
            found = [threads.submit(answer_of, running.url, one) for one in requests]
            until(lambda: running.line.running == len(requests))
            passes.go()
            found = [one.result() for one in found]
        assert max(passes.rows) >= 8
        alone = [answer_of(running.url, one) for one in requests]
        assert set(passes.rows[-8:]) == {1}
    for asked, same, (text, reason, sources) in zip(requests, alone, found, strict=True):
        assert (text, reason) == same[:2]
        if asked["model"] == "tiny":
            seed, new_tokens = asked.get("seed"), asked["max_tokens"]
            written = by_library(asked["prompt"], new_tokens, seed=seed, knn=False)[0]
            for stop in asked.get("stop", ()):
                written = written.partition(stop)[0]
            assert (text, sources) == (written, None)
            continue
        documents = [(one["document"], one["share"]) for one in sources["documents"]]
        others = [(one["document"], one["share"]) for one in same[2]["documents"]]
        assert dict(documents) == pytest.approx(dict(others), abs=2e-3)


def test_a_client_that_leaves_ends_its_text_only(served, passes, by_library):
    with serving(served, at_once=1, waiting=20) as running, ThreadPoolExecutor(3) as threads:
        line = sent(running, body(max_tokens=100))
        until(lambda: running.line.running == 1)
        leaving = running.line.jobs[0]
        others = [threads.submit(answer_of, running.url, body()) for _ in range(3)]
        until(lambda: running.line.running == 4)
        line.close()
        until(lambda: leaving.cancelled)
        passes.go()
        assert [one.result()[0] for one in others] == [by_library(PROMPT, 24)[0]] * 3
        until(lambda: running.line.running == 0)


def test_an_error_in_a_pass_is_told_to_each(served, passes, monkeypatch):
    with serving(served, at_once=1, waiting=20) as running, ThreadPoolExecutor(3) as threads:
        post = [
            threads.submit(httpx.post, f"{running.url}/v1/completions", json=body(), timeout=60)
            for _ in range(3)
        ]
        until(lambda: running.line.running == 3)

        def fails(*_, **__):
            raise RuntimeError("a secret")

        monkeypatch.setattr(served.model.transformer, "forward", fails)
        passes.go()
        answers = [one.result() for one in post]
        # The first was in its pass already, which the others' failure does not undo.
        assert {one.status_code for one in answers} == {500}
        assert not any("secret" in one.text for one in answers)


def test_what_cannot_share_waits_for_a_place(served, monkeypatch):
    def can(**changed):
        return shares(served, served.completion(CompletionBody(**body(**changed))))

    assert can()
    for more in (
        {"temperature": 1},
        {"n": 2},
        {"echo": True},
        {"knn": {"k": 2}},
        {"model": "tiny"},
    ):
        assert can(**more)
    monkeypatch.setattr("knn_logits_serve.writing.LONGEST", 20)
    assert not can()
    messages = [{"role": "user", "content": "Who founded Oldenport?"}]
    asked = ChatBody(model="tiny+texts", messages=messages, ask=True)
    assert not shares(served, served.conversation(asked))


def runs_of(kinds, *, at_once, together):
    """Lets requests come one by one; returns the number of those that run.

    A kind is "s" for a request that shares passes, or "a" for one that runs alone.
    """
    go, running = threading.Event(), []

    def work(turn):
        running.append(turn.request)
        assert go.wait(30)

    async def run():
        line = Line(at_once, 100, 10.0, together)
        jobs = []
        for number, kind in enumerate(kinds):
            jobs.append(line.join((number, kind), work, kind == "s"))
            await asyncio.sleep(0)
        started = line.running
        go.set()
        for job in jobs:
            assert await job.news.get() is None
        while line.running:
            await asyncio.sleep(0)
        await line.close(1)
        return started

    started = asyncio.run(asyncio.wait_for(run(), 60))
    assert sorted(running) == list(enumerate(kinds))
    return started


def test_requests_that_share_passes_count_as_one():
    assert runs_of("sss", at_once=1, together=8) == 3
    assert runs_of("sssss", at_once=2, together=3) == 3
    assert runs_of("sssaa", at_once=2, together=8) == 4
    # What runs alone keeps its turn: those behind it do not begin before it.
    assert runs_of("ssass", at_once=1, together=8) == 2
    assert runs_of("asss", at_once=2, together=8) == 4
