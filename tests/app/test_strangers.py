"""What strangers may not do: call under another name, take everything, or hold a connection."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from app.conftest import PATIENCE
from app.test_raw_requests import API, call, form, outcome, refused
from knn_logits_app import door
from knn_logits_app.door import Names


def is_foreign(names, host, origin=None):
    headers = [(b"host", host.encode())]
    headers += [] if origin is None else [(b"origin", origin.encode())]
    return names.foreign({"headers": headers}) is not None


def test_a_server_answers_under_its_own_names(monkeypatch):
    monkeypatch.setenv(door.HOSTS, " *.knn.example.net,")
    names = Names(["knn.example.org"], "listens.here")
    for host in (
        "127.0.0.1:7860", "localhost:7860", "[::1]:7860", "192.168.1.7:7860", "listens.here:81",
        f"{socket.gethostname()}:80", "knn.example.org", "a.knn.example.net",
    ):  # fmt: skip
        assert not is_foreign(names, host)
    for host in (
        "evil.example", "localhost.evil.example", "knn.example.net", "", "[::1", "localhost:port",
        "evil.example\\@127.0.0.1", "evil.example@127.0.0.1", "127.0.0.1#evil.example",
    ):  # fmt: skip
        assert is_foreign(names, host)


def test_a_space_answers_under_its_own_name(monkeypatch):
    monkeypatch.setenv("SPACE_ID", "someone/page")
    assert not is_foreign(Names(), "someone-page.hf.space")
    monkeypatch.setenv("SPACE_HOST", "someone-page.hf.space")
    names = Names()
    assert not is_foreign(names, "10.0.0.7:7860", "https://someone-page.hf.space")
    assert is_foreign(names, "someone-page.hf.space", "https://another-page.hf.space")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"}, {"x-forwarded-host": "evil.example"},
        {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:1"},
        {"host": "evil.example", "origin": "http://evil.example"},
    ],
    ids=str,
)  # fmt: skip
def test_foreign_names_and_origins_are_refused(client, headers):
    """Another site's name may lead here all of a sudden (DNS rebinding)."""
    asked = {**headers, "access-control-request-method": "POST"}
    for path in ("/", "/config", f"{API}/info", f"{API}/queue/join", f"{API}/upload"):
        for method in ("GET", "POST", "OPTIONS"):
            answer = client.request(method, path, headers=asked)
            refused(answer, 403)
            assert "access-control-allow-origin" not in answer.headers


def test_what_was_not_uploaded_is_no_file(client):
    fetched = []

    class Inner(BaseHTTPRequestHandler):
        def do_GET(self):
            fetched.append(self.path)
            self.send_response(200)
            self.end_headers()

    inner = HTTPServer(("127.0.0.1", 0), Inner)
    threading.Thread(target=inner.serve_forever, daemon=True).start()
    for path in (
        f"http://127.0.0.1:{inner.server_port}/x", "/etc/passwd", "../../etc/passwd",
        "file:///etc/passwd", "0123456789abcdef/../../x", "0123456789abcdef/..", None, 7, ["x"],
    ):  # fmt: skip
        file = {"path": path, "url": path, "meta": {"_type": "gradio.FileData"}}
        for data in ([[file]], [file]):
            refused(call(client, data, name="upload")[0], 400)
        refused(call(client, form(file))[0], 400)
    inner.shutdown()
    assert fetched == []


NOW = r"\"now\":"


def built(client, session, files=None):
    """What a page is told when it has attached files."""
    files = files or {"a.txt": b"The keeper counts the seals."}
    sent = [("files", file) for file in files.items()]
    paths = client.post(f"{API}/upload", files=sent).json()
    # The address is the page's own in truth, and is not read.
    about = {"url": "http://127.0.0.1:1/x", "meta": {"_type": "gradio.FileData"}}
    uploaded = [{"path": one, **about} for one in paths]
    answer, _ = call(client, [uploaded], name="upload", session=session)
    assert answer.status_code == 200, answer.text
    return outcome(client, session)


@contextlib.contextmanager
def page_open(url, session):
    """A page's sign of life, as gradio's own page gives it."""
    with (
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
        client.stream("GET", f"{API}/heartbeat/{session}") as stream,
    ):
        lines = stream.iter_lines()  # its end would be the connection's
        next(lines)
        yield


def test_what_a_visitor_has_stays_whoever_else_comes(served, monkeypatch):
    url, server = served
    server.visitors.close()
    monkeypatch.setattr("knn_logits_app.visitors.MOST_TEXTS", 2)
    with httpx.Client(base_url=url, timeout=PATIENCE) as client, page_open(url, "visitor01"):
        seen = [built(client, one) for one in ("visitor01", "crowd0001", "crowd0002")]
        assert [NOW in one for one in seen] == [True, True, False]
        assert "oo many visitors" in seen[-1]
        # The same text again takes no more room.
        assert NOW in built(client, "crowd0001")
        monkeypatch.setattr("knn_logits_app.visitors.AWAY_SECONDS", 0.0)
        # Who is away makes room; whose page is open does not.
        assert NOW in built(client, "crowd0002")
        assert server.visitors.stores("visitor01")
        assert not server.visitors.stores("crowd0001")
    server.visitors.close()


def test_invented_signs_of_life_cost_nothing_and_a_closed_page_is_forgotten(served):
    url, server = served

    async def beat(client, number, opened, closing):
        async with client.stream("GET", f"{API}/heartbeat/invented{number}") as stream:
            assert "ALIVE" in await anext(stream.aiter_lines())
            opened.append(number)
            await closing.wait()

    async def crowd():
        opened, closing = [], asyncio.Event()
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as client:
            beats = [asyncio.create_task(beat(client, one, opened, closing)) for one in range(100)]
            while len(opened) < 100:
                await asyncio.sleep(0.05)
            closing.set()
            await asyncio.gather(*beats)

    # A browser of another test may have left this thread with a running loop.
    with ThreadPoolExecutor() as pool:
        pool.submit(asyncio.run, crowd()).result()
    begun = time.monotonic()
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        assert client.get("/").status_code == 200
        assert time.monotonic() - begun < 3
        with page_open(url, "visitor02"):
            assert NOW in built(client, "visitor02")
            with page_open(url, "visitor02"):
                pass
            assert server.visitors.stores("visitor02")  # another of its pages is open
    for _ in range(100):
        if not server.visitors.stores("visitor02"):
            break
        time.sleep(0.1)
    assert not server.visitors.stores("visitor02")


def test_the_same_upload_of_two_visitors_has_two_paths(client):
    files = {"files": ("a.txt", b"The keeper counts the seals.")}
    first, second = (client.post(f"{API}/upload", files=files).json()[0] for _ in range(2))
    assert first != second
    assert first.endswith("/a.txt")


SERVER = """
import time
from knn_logits_app.visitors import private_folder, end_on_sigterm
(private_folder() / "own.txt").write_text("A visitor's text.")
end_on_sigterm()
print(private_folder(), flush=True)
while True:
    time.sleep(0.05)
"""


def test_nothing_of_visitors_is_left_when_the_server_ends(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, env=environment, text=True
    )
    found = Path(server.stdout.readline().strip())
    try:
        assert (found / "own.txt").exists()
        assert (found.stat().st_mode & 0o077) == 0
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(180)
    assert list(tmp_path.iterdir()) == []
