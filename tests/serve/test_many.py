"""Many clients at once: nothing is mixed, and work that nobody waits for ends."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from knn_logits.hosting import Deadline
from knn_logits_serve import writing
from serve.conftest import PROMPT, sent, serving

PROMPTS = (PROMPT, "The pump needs oil", "Queen Maira", "Each morning the keeper")


def until(holds, seconds=30):
    """Waits until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.01)


def test_clients_at_once_get_what_the_library_writes(client, by_library):
    def ask(number):
        asked = {"model": ("tiny", "tiny+texts")[number % 2], "prompt": PROMPTS[number % 4]}
        chunks = client.completions.create(
            **asked, max_tokens=10, seed=number, temperature=1, stream=True
        )
        return "".join(chunk.choices[0].text for chunk in chunks)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, range(8)))
    for number, text in enumerate(found):
        wanted = by_library(PROMPTS[number % 4], 10, seed=number, knn=number % 2 == 1)[0]
        assert text == wanted


def accepts(running):
    try:
        return bool(httpx.get(f"{running.url}/health"))
    except httpx.ConnectError:
        return False


def body(**changed):
    return {"model": "tiny+texts", "prompt": PROMPT, "max_tokens": 4, **changed}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["waiting", "running", "writing"])
def test_a_client_that_goes_away_ends_its_request(served, held, stream, phase, monkeypatch):
    asked = body(stream=stream, max_tokens=200)
    deadlines = []

    def noted():
        deadlines.append(Deadline())
        return deadlines[-1]

    monkeypatch.setattr(writing, "Deadline", noted)
    with serving(served) as running:
        first = sent(running, asked)
        until(lambda: held.rows == [1])
        if phase == "waiting":
            line = sent(running, asked)
            until(lambda: len(deadlines) == 2)
            line.close()
            until(lambda: deadlines[1].cancelled)
        if phase == "writing":
            held.go()
            if stream:
                assert first.recv(20)
        first.close()
        until(lambda: deadlines[0].cancelled)
        held.go()
        assert httpx.post(f"{running.url}/v1/completions", json=body()).status_code == 200
        # The request that waited was never begun.
        assert held.rows == [1, 1]


def test_the_end_is_graceful(served, held, openai):
    """Running and waiting requests are answered, and no new one is accepted."""
    with serving(served) as running, ThreadPoolExecutor(4) as threads:

        def ask():
            return httpx.post(f"{running.url}/v1/completions", json=body(), timeout=60)

        runs = threads.submit(ask)
        until(lambda: held.rows == [1])
        waits = threads.submit(ask)
        until(lambda: len(running.server.server_state.tasks) == 2)
        running.server.should_exit = True
        until(lambda: not accepts(running))
        held.go()
        assert [one.result().status_code for one in (runs, waits)] == [200, 200]


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
