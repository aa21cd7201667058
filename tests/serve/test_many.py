"""Many clients at once: nothing mixed, a line with an end, and work that nobody waits for ends."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from serve.conftest import PROMPT, sent, serving

PROMPTS = (PROMPT, "The pump needs oil", "Queen Maira", "Each morning the keeper")


def until(holds, seconds=30):
    """Waits until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.01)


def test_sixteen_clients_at_once_get_what_the_library_writes(client, by_library):
    def ask(number):
        prompt, seed = PROMPTS[number % 4], number // 4
        model, stream = ("tiny", "tiny+texts")[number % 2], number % 3 == 0
        asked = {"model": model, "prompt": prompt, "max_tokens": 10, "seed": seed}
        asked["temperature"] = 1
        if stream:
            chunks = client.completions.create(**asked, stream=True)
            return "".join(chunk.choices[0].text for chunk in chunks)
        return client.completions.create(**asked).choices[0].text

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(ask, range(32)))
    for number, text in enumerate(found):
        wanted = by_library(PROMPTS[number % 4], 10, seed=number // 4, knn=number % 2 == 1)[0]
        assert text == wanted


def body(**changed):
    return {"model": "tiny+texts", "prompt": PROMPT, "max_tokens": 4, **changed}


def test_a_line_that_is_full_says_when_to_come_back(served, held):
    with (
        serving(served, at_once=1, waiting=2) as running,
        ThreadPoolExecutor(16) as threads,
    ):

        def ask(_):
            return httpx.post(f"{running.url}/v1/completions", json=body(), timeout=60)

        first = [threads.submit(ask, 0) for _ in range(3)]
        until(lambda: running.line.running == 1 and running.line.waiting == 2)
        others = list(threads.map(ask, range(12)))
        for answer in others:
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "queue_full"
            assert int(answer.headers["retry-after"]) >= 1
        about = httpx.get(f"{running.url}/health").json()
        assert about == {"status": "ok", "running": 1, "waiting": 2}
        held.go()
        answers = [one.result() for one in first]
        assert [one.status_code for one in answers] == [200] * 3
        assert len({one.json()["choices"][0]["text"] for one in answers}) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["waiting", "running", "writing"])
def test_a_client_that_goes_away_ends_its_request(served, held, stream, phase):
    asked = body(stream=stream, max_tokens=200)
    with serving(served, at_once=1, waiting=5) as running:
        first = sent(running, asked)
        until(lambda: held.rows == [1] and running.line.running == 1)
        (job,) = running.line.jobs
        if phase == "waiting":
            line = sent(running, asked)
            until(lambda: running.line.waiting == 1)
            line.close()
            until(lambda: running.line.waiting == 0)
            assert running.line.running == 1
        if phase == "writing":
            held.go()
            if stream:
                assert first.recv(20)
        first.close()
        until(lambda: job.deadline.cancelled)
        held.go()
        until(lambda: running.line.running == 0)
        assert httpx.post(f"{running.url}/v1/completions", json=body()).status_code == 200


def test_the_end_is_graceful(served, held, openai):
    """Who is answered is answered to the end; who waits is told; nobody new is let in."""
    with (
        serving(served, at_once=1, waiting=5, patience=20) as running,
        ThreadPoolExecutor(4) as threads,
    ):

        def ask():
            return httpx.post(f"{running.url}/v1/completions", json=body(), timeout=60)

        runs = threads.submit(ask)
        until(lambda: running.line.running == 1)
        waits = threads.submit(ask)
        until(lambda: running.line.waiting == 1)
        running.server.should_exit = True
        assert waits.result().status_code == 503
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{running.url}/health")
        held.go()
        assert runs.result().status_code == 200


def test_a_request_that_takes_too_long_ends(served):
    with serving(served, seconds=1e-6) as running:
        asked = body(max_tokens=200)
        choice = httpx.post(f"{running.url}/v1/completions", json=asked).json()["choices"][0]
        assert choice["finish_reason"] == "length"
        assert len(choice["text"]) < 20


def test_an_error_inside_is_one_line_for_the_client_and_one_in_the_log(
    served, running, http, monkeypatch, caplog
):
    def fails(*_, **__):
        raise RuntimeError("a secret\nin /home/someone")

    monkeypatch.setattr(served.model, "generate", fails)
    answer = http.post("/v1/completions", json=body())
    assert answer.status_code == 500
    assert "secret" not in answer.text
    stream = http.post("/v1/completions", json=body(stream=True))
    assert stream.status_code == 500
    lines = [one for one in caplog.records if one.name == "knn_logits.serve"]
    assert len(lines) == 2
    assert lines[0].getMessage() == "a request failed: RuntimeError: a secret in /home/someone"
    assert lines[0].exc_info is None
