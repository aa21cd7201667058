"""`knn-logits serve`: what it starts, and what it refuses in one line."""

import asyncio
import importlib.util
import signal
import socket

import httpx
import pytest
from forked import Fork, command

import knn_logits_serve.server
from knn_logits_serve.server import Guard, Settings, listen


@pytest.fixture
def started(monkeypatch):
    """What the command would have served."""
    calls = []
    monkeypatch.setattr(
        knn_logits_serve.server,
        "serve",
        lambda served, settings, **given: calls.append((served, settings)),
    )
    return calls


def test_the_command_opens_the_model_with_its_datastores(run, started, model_folder, store):
    done = run.good(
        "serve", model_folder, f"docs={store.folder}", "--port", "0",
        "--name", "knn.example.org", "--api-key", "k", "--lmbda", "0.5",
    )  # fmt: skip
    served, settings = started[0]
    assert list(served.names) == ["tiny+docs", "tiny"]
    assert served.memory.config.lmbda == 0.5
    assert (settings.key, settings.names) == ("k", ("knn.example.org",))
    assert settings.host == "127.0.0.1"
    assert "no chat template" in done.err


def test_what_cannot_be_served_is_one_line(run, started, model_folder, store, monkeypatch):
    for stores in (["/nowhere"], [f"a={store.folder}", f"a={store.folder}"]):
        done = run("serve", model_folder, *stores)
        assert (done.code, len(done.err.splitlines())) == (1, 1)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "knn_logits.cli.serve.find_spec", lambda name: None if name == "starlette" else found(name)
    )
    done = run("serve", model_folder, store.folder)
    assert 'pip install "knn-logits[serve]"' in done.err
    assert started == []


def test_a_port_that_is_taken_is_one_line(run, model_folder, store):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", model_folder, store.folder, "--port", taken.getsockname()[1])
    assert done.code == 1
    assert "choose another --port" in done.err


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]
)
def test_the_process_ends_when_it_is_told_to(model_folder, store, number):
    with Fork(command("serve", model_folder, store.folder, "--port", "0")) as process:
        address = process.stdout.readline().split(": ", 1)[1].strip()
        assert len(httpx.get(f"{address}/models").json()["data"]) == 2
        process.send_signal(number)
        _, err = process.ended()
    assert process.returncode in (0, 130, -number)
    assert "Traceback" not in err


def test_an_answer_that_the_end_of_the_server_cuts_is_no_error():
    async def served():
        begun = asyncio.Event()

        async def endless(scope, receive, send):
            begun.set()
            await asyncio.Event().wait()

        scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
        task = asyncio.create_task(Guard(endless, None)(scope, None, None))
        await begun.wait()
        task.cancel()
        await task

    asyncio.run(served())


def test_small_parts_of_an_answer_are_sent_at_once():
    bound = listen(Settings(port=0))
    try:
        # asyncio turns Nagle's algorithm off for sockets of this protocol only.
        assert bound.proto == socket.IPPROTO_TCP
    finally:
        bound.close()
