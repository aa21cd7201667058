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
import missing
import pytest

from app.conftest import PATIENCE, serving
from app.test_raw_requests import API, call, form, outcome, refused
from knn_logits_app import door
from knn_logits_app.door import Names
from knn_logits_app.guard import address_of
from knn_logits_app.visitors import PrivateFolder, Quotas, sweep


@pytest.fixture(scope="module")
def strict(library):
    """A page with small quotas, which runs one request at a time."""
    quotas = Quotas(waiting=3, uploaded=5_000, uploaded_by_all=9_000, stores=2, stores_of_all=4)
    with serving(library, quotas=quotas, at_once=1, host="127.0.0.1") as found:
        yield found


def is_foreign(names, host, origin=None):
    headers = [(b"host", host.encode())]
    headers += [] if origin is None else [(b"origin", origin.encode())]
    return names.foreign({"headers": headers}) is not None


@pytest.mark.parametrize(
    ("host", "meant"),
    [
        ("127.0.0.1:7860", True), ("localhost:7860", True), ("[::1]:7860", True),
        ("192.168.1.7:7860", True), (f"{socket.gethostname()}:80", True),
        ("knn.example.org", True), ("a.knn.example.net", True), ("evil.example", False),
        ("localhost.evil.example", False), ("knn.example.net", False), ("", False),
        ("[::1", False), ("localhost:port", False), ("evil.example\\@127.0.0.1", False),
        ("evil.example@127.0.0.1", False), ("127.0.0.1/evil.example", False),
        ("127.0.0.1#evil.example", False), ("listens.here:81", True),
    ],
)  # fmt: skip
def test_a_server_answers_under_its_own_names(monkeypatch, host, meant):
    monkeypatch.setenv(door.HOSTS, " *.knn.example.net,")
    assert is_foreign(Names(["knn.example.org"], "listens.here"), host) != meant


def test_a_space_answers_under_its_own_name(monkeypatch):
    monkeypatch.setenv("SPACE_ID", "someone/page")
    assert not is_foreign(Names(), "someone-page.hf.space")
    monkeypatch.setenv("SPACE_HOST", "someone-page.hf.space")
    names = Names()
    assert not is_foreign(names, "10.0.0.7:7860", "https://someone-page.hf.space")
    assert is_foreign(names, "someone-page.hf.space", "https://another-page.hf.space")


PATHS = ("/", "/config", f"{API}/info", f"{API}/queue/join", f"{API}/upload")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"}, {"x-forwarded-host": "evil.example"},
        {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:1"},
        {"host": "evil.example", "origin": "http://evil.example"},
    ],
    ids=str,
)  # fmt: skip
def test_foreign_names_and_origins_are_refused(client, path, headers):
    for method in ("GET", "POST", "OPTIONS"):
        asked = {**headers, "access-control-request-method": "POST"}
        answer = client.request(method, path, headers=asked)
        refused(answer, 403)
        assert "access-control-allow-origin" not in answer.headers


def test_a_request_with_two_lengths_ends_its_connection(url):
    """A proxy before the page may read the other length, and so another next request."""
    host, port = url.removeprefix("http://").split(":")
    hidden = f"GET /config HTTP/1.1\r\nHost: {host}\r\n\r\n"
    head = f"GET /config HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {5 + len(hidden)}\r\n"
    with socket.create_connection((host, int(port))) as line:
        line.settimeout(PATIENCE)
        line.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}".encode())
        answer = b""
        while more := line.recv(65536):
            answer += more
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_page_of_another_site_reaches_nothing(chromium, url, served):
    """DNS rebinding in a real browser: another site's name leads here all of a sudden."""
    port = url.rsplit(":", 1)[1]

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>evil</title>")

        def log_message(self, *_):
            pass

    evil = HTTPServer(("127.0.0.1", 0), Evil)
    threading.Thread(target=evil.serve_forever, daemon=True).start()
    mapped = chromium.browser_type.launch(
        executable_path=missing.CHROMIUM,
        args=["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"],
    )
    try:
        page = mapped.new_page()
        page.goto(f"http://evil.example:{port}/")
        assert "does not answer under that name" in page.content()
        page.goto(f"http://127.0.0.1:{evil.server_port}/")
        read = """async (address) => {
          try {
            const answer = await fetch(address + "/gradio_api/info");
            return await answer.text();
          } catch (error) { return "blocked"; }
        }"""
        assert page.evaluate(read, url) == "blocked"
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
    finally:
        mapped.close()
        evil.shutdown()


def test_an_upload_is_answered_with_a_handle(client):
    (handle,) = client.post(f"{API}/upload", files={"files": ("a.txt", b"mine")}).json()
    name, _, file = handle.partition("/")
    assert file == "a.txt"
    assert set(name) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "path",
    [
        "http://127.0.0.1:1/x", "https://example.org/x", "/etc/passwd", "../../etc/passwd",
        "file:///etc/passwd", "0123456789abcdef/../../x", "0123456789abcdef/..", None, 7, ["x"],
    ],
)  # fmt: skip
def test_what_was_not_uploaded_is_no_file(client, path):
    fetched = []

    class Inner(BaseHTTPRequestHandler):
        def do_GET(self):
            fetched.append(self.path)
            self.send_response(200)
            self.end_headers()

    inner = HTTPServer(("127.0.0.1", 0), Inner)
    threading.Thread(target=inner.serve_forever, daemon=True).start()
    if path == "http://127.0.0.1:1/x":
        path = f"http://127.0.0.1:{inner.server_port}/x"
    file = {"path": path, "url": path, "meta": {"_type": "gradio.FileData"}}
    for data in ([[file]], [file]):
        refused(call(client, data, name="upload")[0], 400)
    refused(call(client, form(file))[0], 400)
    inner.shutdown()
    assert fetched == []


NOW = r"\"now\":"


def built(client, session, address, text="The keeper counts the seals.", files=None):
    """What a page at an address is told when it has attached files."""
    sent = [("files", file) for file in (files or {"a.txt": text.encode()}).items()]
    handles = client.post(f"{API}/upload", files=sent, headers={"x-forwarded-for": address}).json()
    uploaded = [{"path": one, "meta": {"_type": "gradio.FileData"}} for one in handles]
    answer, _ = call(client, [uploaded], name="upload", session=session, address=address)
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


def test_what_a_visitor_has_stays_whoever_else_comes(strict, monkeypatch):
    url, server = strict
    with (
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
        page_open(url, "visitor01"),
    ):
        assert NOW in built(client, "visitor01", "198.51.100.1")
        many = [built(client, f"crowd{one:04}", "198.51.100.2") for one in range(4)]
        assert [NOW in one for one in many] == [True, True, False, False]
        assert "address already has 2 texts" in many[-1]
        # The same text again takes no more room.
        assert NOW in built(client, "crowd0001", "198.51.100.2")
        others = [built(client, f"other{one}", f"198.51.100.{one}") for one in (3, 4)]
        assert [NOW in one for one in others] == [True, False]
        assert "oo many visitors" in others[-1]
        monkeypatch.setattr("knn_logits_app.visitors.AWAY_SECONDS", 0.0)
        # Who is away makes room; whose page is open does not.
        assert NOW in built(client, "other0005", "198.51.100.5")
        assert server.visitors.stores("visitor01")
        assert not server.visitors.stores("crowd0000")


def test_invented_signs_of_life_cost_nothing_and_a_closed_page_is_forgotten(strict):
    url, server = strict

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
            assert NOW in built(client, "visitor02", "198.51.100.9")
            with page_open(url, "visitor02"):
                pass
            assert server.visitors.stores("visitor02")  # another of its pages is open
    for _ in range(100):
        if not server.visitors.stores("visitor02"):
            break
        time.sleep(0.1)
    assert not server.visitors.stores("visitor02")


def test_the_same_upload_of_two_visitors_has_two_handles(strict):
    with httpx.Client(base_url=strict[0], timeout=PATIENCE) as client:
        files = {"files": ("a.txt", b"The keeper counts the seals.")}
        first, second = (client.post(f"{API}/upload", files=files).json()[0] for _ in range(2))
    assert first != second
    assert first.endswith("/a.txt")


def test_one_address_does_not_fill_the_queue(strict, monkeypatch):
    gate, (url, server) = threading.Event(), strict
    write = server.session.write

    def held(*given):
        gate.wait(180)
        yield from write(*given)

    monkeypatch.setattr(server.session, "write", held)
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:

        def ask(address):
            return call(client, form("The"), address=address)

        crowd = [ask("198.51.100.2") for _ in range(6)]
        assert [one.status_code for one, _ in crowd] == [200] * 3 + [503] * 3
        assert "from your address" in crowd[-1][0].text
        visitor, session = ask("198.51.100.1")
        assert visitor.status_code == 200
        # Neighbors in one IPv6 network are one address.
        network = [ask(f"2001:db8:1:2::{one}")[0].status_code for one in range(1, 5)]
        assert network == [200] * 3 + [503]
        gate.set()
        for one in [session, *(other for _, other in crowd[:3])]:
            assert "sides" in outcome(client, one)
        assert ask("198.51.100.2")[0].status_code == 200


def test_one_address_does_not_use_up_everybodys_uploads(strict):
    with httpx.Client(base_url=strict[0], timeout=PATIENCE) as client:

        def upload(address):
            files = {"files": ("a.txt", os.urandom(1500).hex().encode())}
            headers = {"x-forwarded-for": address}
            return client.post(f"{API}/upload", files=files, headers=headers).status_code

        assert [upload("198.51.100.2") for _ in range(3)] == [200, 503, 503]
        assert upload("198.51.100.1") == 200
        assert upload("198.51.100.3") == 503


def test_an_address_is_that_of_the_connection_but_on_a_space(monkeypatch):
    noted = (b"x-forwarded-for", b"6.6.6.6, 8.8.8.8, 10.0.0.1")
    scope = {"client": ("10.1.2.3", 5), "headers": [noted]}
    assert address_of(scope) == "10.1.2.3"
    assert address_of({"client": None, "headers": []}) == ""
    monkeypatch.setenv("SPACE_ID", "someone/page")
    assert address_of(scope) == "8.8.8.8"


SERVER = """
import time
from knn_logits_app.visitors import private_folder, ends_on_sigterm
(private_folder().path / "own.txt").write_text("A visitor's text.")
with ends_on_sigterm():
    print(private_folder().path, flush=True)
    while True:
        time.sleep(0.05)
"""


@pytest.mark.parametrize("how", ["told to end", "killed"])
def test_nothing_of_visitors_is_left_when_the_server_ends(tmp_path, how):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, env=environment, text=True
    )
    found = Path(server.stdout.readline().strip())
    try:
        assert (found / "own.txt").exists()
        sweep(tmp_path)  # another server starts meanwhile
        assert (found / "own.txt").exists()
    finally:
        server.send_signal(signal.SIGTERM if how == "told to end" else signal.SIGKILL)
        server.wait(180)
    if how == "killed":
        assert found.exists()
        other = PrivateFolder(tmp_path)
        other.delete()
    assert list(tmp_path.glob("knn-logits-*")) == []
