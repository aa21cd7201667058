"""Requests that no page sends: beyond every limit, malformed, or after what is not theirs."""

import itertools

import httpx
import pytest

from app.conftest import PATIENCE, serving

API = "/gradio_api"
_NUMBERS = itertools.count()


def refused(answer, *statuses):
    """The answer says no, in one line, with no traceback and no path."""
    assert answer.status_code in (statuses or range(400, 500)), answer.text[:300]
    assert "Traceback" not in answer.text
    assert "/site-packages" not in answer.text
    assert answer.elapsed.total_seconds() < 10
    assert isinstance(answer.json()["detail"], str)
    return answer.text


def event(client, name):
    """The number of an event of the page: "write", "ask" in the chat, or "upload"."""
    dependencies = client.get("/config").json()["dependencies"]
    size, target = {"write": (11, "click"), "ask": (5, "ask"), "upload": (1, "upload")}[name]
    return next(
        one["id"] for one in dependencies
        if len(one["inputs"]) == size and target in [event for _, event in one["targets"]]
    )  # fmt: skip


def form(prompt, *, stores=("manual",), lmbda=0.6, k=1024, temperature=0.03, new_tokens=4):
    """The values of the form that writes."""
    stores = list(stores) if isinstance(stores, tuple) else stores
    return [stores, "fixed", lmbda, k, temperature, prompt, True, new_tokens, True, 0, 0]


def call(client, data, *, name="write", session=None, **more):
    """Sends a request to the queue, and returns the answer and its session."""
    session = session or f"somebody{next(_NUMBERS)}"
    body = {"data": data, "fn_index": event(client, name), "session_hash": session, **more}
    return client.post(f"{API}/queue/join", json=body), session


def outcome(client, session):
    """What a page is told of its request until it has ended."""
    seen = ""
    with client.stream("GET", f"{API}/queue/data?session_hash={session}") as stream:
        for line in stream.iter_lines():
            seen += line
            if "process_completed" in line:
                break
    return seen


@pytest.mark.parametrize(
    "data",
    [
        form("x" * 30_000), form("word " * 400), form(""), form(None),
        form("The", new_tokens=10**9), form("The", new_tokens=-1), form("The", k=0),
        form("The", k=10**12), form("The", k="all"), form("The", lmbda=7),
        form("The", temperature=0), form("The", stores=["../../etc/passwd"]),
        form("The", stores=["your text"]), form("The", stores=["manual"] * 100),
        form("The", stores=[{"a": "/etc/passwd"}]), form("The", stores={"a": 1}),
        [*form("The")[:-1], "x"], [*form("The")[:9], -1, 0], [],
    ],
    ids=lambda data: str(data)[:60],
)  # fmt: skip
def test_values_that_no_page_sends_are_refused_in_one_line(client, data):
    answer, session = call(client, data)
    if answer.status_code != 200:
        refused(answer)
        return
    seen = outcome(client, session)
    assert "kl-" not in seen
    assert "sides" not in seen
    assert "Traceback" not in seen
    assert "/site-packages" not in seen


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"7", b'{"data": 7}', b'{"data": {"a": 1}}',
        b"\xff\xfe", b"[" * 5000, b'{"data": ' + b"[" * 20 + b"]" * 20 + b"}",
        b'{"data": [], "fn_index": "x"}', b'{"data": [], "session_hash": "../x"}',
        b'{"data": [], "session_hash": ["x"]}', b'{"data": [], "fn_index": 1000000}',
        b'{"data": [], "fn_index": -1}',
    ],
    ids=lambda content: content[:24].decode(errors="replace"),
)  # fmt: skip
def test_what_is_no_request_is_refused(client, content):
    headers = {"content-type": "application/json"}
    refused(client.post(f"{API}/queue/join", content=content, headers=headers))


def test_the_ways_past_the_queue_are_closed(client):
    body = {"data": form("The")}
    for path in ("/run/on_write", "/api/on_write", "/run/predict/", "/call/on_write",
                 "/call/v2/on_write", "/mcp/"):  # fmt: skip
        refused(client.post(API + path, json=body), 404)
    named = client.get(f"{API}/info").json()
    assert not named["named_endpoints"]
    assert not named["unnamed_endpoints"]


def test_a_large_body_is_refused(client):
    refused(client.post(f"{API}/queue/join", content=b"x" * 700_000), 413)
    refused(client.post("/anything", content=b"x" * 3_000_000), 413)

    def endless():
        for _ in range(1000):
            yield b"x" * 10_000

    refused(client.post(f"{API}/queue/join", content=endless()), 413)


def test_an_upload_is_bounded(client):
    large = {"files": ("a.txt", b"x" * 1_500_000)}
    refused(client.post(f"{API}/upload", files=large), 413)
    many = [("files", (f"{one}.txt", b"x" * 500_000)) for one in range(5)]
    refused(client.post(f"{API}/upload", files=many), 413)
    refused(client.post(f"{API}/upload", content=b"nonsense"))


def test_no_file_is_given_away(client):
    mine = client.post(f"{API}/upload", files={"files": ("a.txt", b"mine")}).json()[0]
    for path in (
        f"{API}/file={mine}", f"{API}/file=/etc/passwd", f"{API}/file={__file__}", f"/file={mine}",
        f"/file={__file__}", f"{API}/file/etc/passwd", "/static/../../../../etc/passwd",
        "/assets/..%2f..%2f..%2fapp.py", f"{API}/proxy=http://127.0.0.1/", "/monitoring",
        f"{API}/vibe-code/", f"{API}/runs", "/svelte/..%2f..%2froutes.py",
    ):  # fmt: skip
        refused(client.get(path))


def test_a_full_queue_says_so(library, monkeypatch):
    monkeypatch.setattr("knn_logits_app.server.QUEUE", 2)
    with (
        serving(library, at_once=1) as (url, _),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        calls = [call(client, form("The", new_tokens=30)) for _ in range(8)]
        statuses = [answer.status_code for answer, _ in calls]
        assert set(statuses) == {200, 503}
        assert "full" in calls[statuses.index(503)][0].text
        for answer, session in calls:
            if answer.status_code == 200:
                assert "sides" in outcome(client, session)


def test_a_request_is_not_estimated_by_one_of_another_size(client):
    for size in (1, 4):
        _, session = call(client, form("The", new_tokens=size))
        told = outcome(client, session).replace(" ", "")
        assert '"rank_eta":null' in told
        assert '"eta":null' in told


def test_every_answer_forbids_the_page_to_call_anybody_else(client):
    for path in ("/", "/config", f"{API}/info", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
