"""Requests without kNN that are alike share a batch, and each gets what it gets alone."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from knn_logits_serve.bodies import CompletionBody
from knn_logits_serve.line import Line
from knn_logits_serve.writing import kind_of
from serve.conftest import PROMPT, sent, serving
from serve.test_many import PROMPTS, until

# The widths of these prompts differ, but not so much that they would be written apart.
ALIKE = (PROMPT, "The pump needs oil each morning", "Queen Maira of the north", "Each morning the")


def body(**changed):
    return {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **changed}


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


def together(running, held, bodies):
    """Sends requests that wait behind another one, so that they are all there when it ends."""
    with ThreadPoolExecutor(len(bodies) + 1) as threads:
        first = threads.submit(answer_of, running.url, body(max_tokens=1))
        until(lambda: held.rows == [1])
        others = []
        for number, one in enumerate(bodies, 1):
            others.append(threads.submit(answer_of, running.url, one))
            until(lambda number=number: running.line.waiting == number)
        held.go()
        first.result()
        return [one.result() for one in others]


def test_a_batch_gives_each_what_it_would_get_alone(served, held, by_library):
    asked = [
        body(
            prompt=ALIKE[number % 4],
            max_tokens=(12, 3, 7, 1, 12, 9, 12, 5)[number],
            stream=number % 3 == 0,
        )
        for number in range(8)
    ]
    with serving(served, at_once=1, waiting=20) as running:
        found = together(running, held, asked)
        assert max(held.rows) >= 6
        assert len(held.rows) < 5
        alone = [answer_of(running.url, one) for one in asked]
    for one, same, (text, reason, sources) in zip(asked, alone, found, strict=True):
        assert text == by_library(one["prompt"], one["max_tokens"], knn=False)[0]
        assert (text, reason) == same[:2]
        assert sources is None


def test_each_row_of_a_batch_has_its_own_stop_texts(served, held, by_library):
    text = by_library(PROMPT, 12, knn=False)[0]
    stops = [text[at : at + 3] for at in (2, 5, 8)]
    asked = [body(stop=stops[number % 3], stream=number % 2 == 0) for number in range(5)] + [body()]
    with serving(served, at_once=1, waiting=20) as running:
        found = together(running, held, asked)
    assert held.rows[1:] == [6]
    for one, (said, reason, _) in zip(asked, found, strict=True):
        stop = one.get("stop")
        assert said == (text if stop is None else text[: text.index(stop)])
        assert stop is None or reason == "stop"


def test_a_client_that_leaves_a_batch_ends_its_row_only(served, held, by_library):
    with serving(served, at_once=1, waiting=20) as running, ThreadPoolExecutor(9) as threads:
        first = threads.submit(answer_of, running.url, body(max_tokens=1))
        until(lambda: held.rows == [1])
        line = sent(running, body())
        until(lambda: running.line.waiting == 1)
        leaving = running.line.jobs[-1]
        others = [threads.submit(answer_of, running.url, body()) for _ in range(6)]
        until(lambda: running.line.waiting == 7)
        held.go()
        line.close()
        first.result()
        assert [one.result()[0] for one in others] == [by_library(PROMPT, 12, knn=False)[0]] * 6
        until(lambda: leaving.cancelled and running.line.running == 0)


def test_an_error_in_a_batch_is_told_to_each(served, held, monkeypatch, caplog):
    def fails(*_, **__):
        raise RuntimeError("a secret")

    with serving(served, at_once=1, waiting=20) as running, ThreadPoolExecutor(9) as threads:
        first = threads.submit(answer_of, running.url, body(max_tokens=1))
        until(lambda: held.rows == [1])
        post = [
            threads.submit(httpx.post, f"{running.url}/v1/completions", json=body(), timeout=60)
            for _ in range(6)
        ]
        until(lambda: running.line.waiting == 6)
        monkeypatch.setattr(served.model, "generate", fails)
        held.go()
        first.result()
        assert [one.result().status_code for one in post] == [500] * 6
    assert len([one for one in caplog.records if one.name == "knn_logits.serve"]) == 1


def test_only_requests_that_are_alike_share_a_batch(served):
    def kind(**changed):
        return kind_of(served, served.completion(CompletionBody(**body(**changed))))

    assert kind() is not None
    for same in ({"max_tokens": 3}, {"stop": ["a"]}, {"stream": True}, {"seed": 5}):
        assert kind(**same) == kind()
    assert kind(prompt=" ".join([PROMPT] * 4)) not in (None, kind())
    alone = [
        {"model": "tiny+texts"},
        {"knn": {"lmbda": 0.5}},
        {"temperature": 0.5},
        {"n": 2},
        {"prompt": list(PROMPTS)},
        {"logprobs": 1},
        {"echo": True},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 1.0},
        {"logit_bias": {"3": 1.0}},
        {"prompt": [5, 0, 6]},  # 0 is the token that pads
    ]
    assert {kind(**one) for one in alone} == {None}


def groups_of(joins, *, together, at_once=1):
    """Runs requests in a line, and returns those of each group.

    Each of the `joins` is a list of requests that come at once, after the earlier ones have ended.
    A request is a pair: what it has in common with others, and the fewest that run together.
    """
    groups, everybody = [], threading.Event()

    def work(turns):
        assert everybody.wait(30)
        groups.append([turn.request for turn in turns])

    async def run():
        line = Line(at_once, 100, 10.0, together)
        for coming in joins:
            everybody.clear()
            jobs = []
            for kind, least in coming:
                jobs.append(line.join(kind, work, alike=kind, least=least))
                await asyncio.sleep(0)
            everybody.set()
            for job in jobs:
                assert await job.news.get() is None
            while line.running:
                await asyncio.sleep(0)
        await line.close(1)

    asyncio.run(asyncio.wait_for(run(), 60))
    return groups


def test_requests_wait_a_moment_for_others_where_there_was_a_crowd():
    crowd = [("a", 2)] * 5
    assert groups_of([crowd, crowd, crowd], together=8) == [["a"], *[["a"] * n for n in (4, 5, 5)]]
    # A single client waits once, and then no more.
    assert groups_of([crowd, crowd[:1], crowd[:1]], together=8)[2:] == [["a"], ["a"]]


def test_a_group_has_its_limits_and_fewer_requests_run_alone():
    assert groups_of([[("a", 2)] * 8], together=3)[1:] == [["a"] * 3, ["a"] * 3, ["a"]]
    assert groups_of([[("a", 6)] * 6], together=8) == [["a"]] * 6
    assert groups_of([[("a", 2)] * 4], together=1) == [["a"]] * 4
    mixed = [("b", 2), ("a", 2), (None, 2), ("a", 2), (None, 2), ("b", 2)]
    assert groups_of([mixed], together=8) == [["b"], ["a", "a"], [None], [None], ["b"]]


def test_a_request_that_leaves_before_the_others_come_is_not_run():
    ran = []

    async def run():
        line = Line(1, 10, 10.0, 8)
        # After a crowd, the first of the next requests waits for others.
        crowd = [line.join("a", lambda _: None, alike="a") for _ in range(4)]
        for job in crowd:
            assert await job.news.get() is None
        while line.running:
            await asyncio.sleep(0)
        job = line.join("a", ran.append, alike="a")
        line.leave(job)
        other = line.join("b", lambda turns: ran.append(turns[0].request), alike="b")
        assert await other.news.get() is None
        await line.close(1)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert ran == ["b"]
