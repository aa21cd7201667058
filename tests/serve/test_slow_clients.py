"""Clients that send or read byte by byte: each is cut off, and the others are answered."""

import contextlib
import hmac
import select
import socket
import threading
import time

import httpx
import pytest
import uvicorn

from knn_logits_app import door
from knn_logits_serve import server as server_module
from serve.conftest import PROMPT, serving

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
BODY = {"model": "tiny+texts", "prompt": PROMPT, "max_tokens": 4}


@pytest.fixture
def hasty(served, monkeypatch):
    """A server whose patience ends after a second."""
    monkeypatch.setattr(door.patient, "__defaults__", (1.0, 1.0))
    monkeypatch.setattr(door, "_BODY_SECONDS", 1.0)
    with serving(served) as running:
        yield running


def connected(running):
    line = socket.create_connection(("127.0.0.1", running.port))
    line.settimeout(60)
    return line


def trickled(line, data, seconds=60):
    """Sends bytes slowly until the server closes; returns what it said, or None if it never did."""
    said, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            line.sendall(data[:1])
        data = data[1:] or b"a"
        if select.select([line], [], [], 0.1)[0]:
            try:
                part = line.recv(65536)
            except ConnectionError:
                return said
            if not part:
                return said
            said += part
    return None


def test_a_head_that_never_ends_is_cut_off(hasty):
    with connected(hasty) as line:
        assert trickled(line, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: ") == b""


@pytest.mark.parametrize("body", [b'{"model": "', b" "])
def test_a_body_that_never_ends_is_refused(hasty, body):
    with connected(hasty) as line:
        line.sendall(HEAD % 100_000)
        said = trickled(line, body)
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"took too long to arrive" in said
    assert b"\r\nconnection: close\r\n" in said.lower()


async def large(scope, receive, send):
    """An application whose answer is more than the buffers between server and client hold."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(32 << 20)})


@pytest.mark.parametrize("unread", [0.5, 600.0])
def test_a_client_that_does_not_read_is_cut_off(unread):
    config = uvicorn.Config(large, port=0, lifespan="off", log_level="critical")
    config.load()
    config.http_protocol_class = door.patient(config.http_protocol_class, 600.0, unread)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as bound, socket.socket() as line:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        line.connect(bound.getsockname())
        line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        line.recv(1)
        connections, end = server.server_state.connections, time.monotonic() + 60
        if unread > 60:  # who reads in time gets the whole
            size = 1
            while size < 32 << 20:
                size += len(line.recv(1 << 20))
        else:
            while connections:
                assert time.monotonic() < end, "the connection stays open"
                time.sleep(0.05)
        server.should_exit = True
        line.close()
        thread.join(60)


def test_the_key_is_compared_in_constant_time(served, monkeypatch):
    compared = []

    def compare(one, other):
        compared.append((one, other))
        return compare_digest(one, other)

    compare_digest = hmac.compare_digest
    monkeypatch.setattr(server_module.hmac, "compare_digest", compare)
    with serving(served, key="secret é") as running:
        for key, status in (("secret é", 200), ("secret e", 401), ("s", 401)):
            given = {"authorization": b"Bearer " + key.encode()}
            answer = httpx.get(f"{running.url}/v1/models", headers=given, timeout=60)
            assert answer.status_code == status
            assert compared.pop() == (key.encode(), "secret é".encode())
