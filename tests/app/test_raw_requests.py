"""Requests that no page sends: beyond every limit, malformed, or after what is not theirs."""

import json

import httpx
import pytest

from app.conftest import PATIENCE, serving

API = "/gradio_api"


def refused(answer, *statuses):
    """The answer says no, in one line, with no traceback and no path."""
    assert answer.status_code in (statuses or range(400, 500)), answer.text[:300]
    assert "Traceback" not in answer.text
    assert "/site-packages" not in answer.text
    assert answer.elapsed.total_seconds() < 10
    return answer.text


def call(client, name, *data):
    # Not httpx's own `json`, which refuses NaN.
    return client.post(
        f"{API}/call/{name}",
        content=json.dumps({"data": list(data)}),
        headers={"content-type": "application/json"},
    )


def outcome(client, answer, name):
    """What an accepted call comes to: the kind of its last event and that event's content."""
    event = answer.json()["event_id"]
    text = client.get(f"{API}/call/{name}/{event}").text
    kind, data = text.strip().split("\n\n")[-1].split("\n")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def generating(prompt, **given):
    """All values of a call of /generate."""
    names = {
        "stores": None, "knn": True, "compare": False, "k": None, "lmbda": None,
        "temperature": None, "new_tokens": 4, "sample": False, "sampling_temperature": 1.0,
        "top_p": 1.0, "seed": 0, "max_neighbors": 3,
    }  # fmt: skip
    return [prompt, *{**names, **given}.values()]


def test_a_call_within_the_limits_works(client):
    answer = call(client, "generate", *generating("The right position of K-5750 is"))
    kind, (content,) = outcome(client, answer, "generate")
    assert kind == "complete"
    assert content["text"].startswith(" opposite")
    assert content["tokens"][0]["neighbors"][0]["document"].startswith("manual-")
    kind, (stores,) = outcome(client, call(client, "datastores"), "datastores")
    assert [one["name"] for one in stores] == ["manual", "chronicle"]


@pytest.mark.parametrize(
    "data",
    [
        generating("x" * 30_000),
        generating("word " * 400),
        generating(""),
        generating(None),
        generating(["a list"]),
        generating("The", new_tokens=10**9),
        generating("The", new_tokens=-1),
        generating("The", new_tokens=0.5),
        generating("The", k=0),
        generating("The", k=10**12),
        generating("The", k="all"),
        generating("The", lmbda=7),
        generating("The", lmbda=float("nan")),
        generating("The", temperature=0),
        generating("The", temperature=float("inf")),
        generating("The", seed=-5),
        generating("The", top_p=0),
        generating("The", sampling_temperature=1e9),
        generating("The", stores=["../../etc/passwd"]),
        generating("The", stores=["your text"]),
        generating("The", stores=["manual"] * 100),
        generating("The", stores=[{"path": "/etc/passwd"}]),
        generating("The", stores="/etc"),
        ["The", *[None] * 40],
    ],
    ids=lambda data: str(data)[:50],
)
def test_a_call_beyond_a_limit_is_refused_before_it_waits(client, data):
    refused(call(client, "generate", *data))


def test_a_call_with_too_few_values_is_told_which_there_are(client):
    for data in ([], ["The"], generating("The")[:-1]):
        text = refused(call(client, "generate", *data), 400)
        assert f"{len(data)} values, but the endpoint takes 13: prompt, stores, knn" in text
    (write, *_) = events(client, 13)
    body = {"data": [["manual"]], "fn_index": write, "session_hash": "abcdefgh"}
    detail = json.loads(refused(client.post(f"{API}/queue/join", json=body), 400))["detail"]
    assert " at 0x" not in detail
    assert len(detail.splitlines()) == 1


def test_compare_without_knn_is_answered_as_well(client):
    answer = call(client, "generate", *generating("The", knn=False, compare=True))
    kind, (content,) = outcome(client, answer, "generate")
    assert kind == "complete"
    assert content["text_without_knn"] == content["text"]


@pytest.mark.parametrize("name", ["explain", "evaluate"])
@pytest.mark.parametrize("text", ["x" * 90_000, "", 7, None])
def test_a_text_beyond_the_limits_is_refused(client, name, text):
    most = [3] if name == "explain" else []
    refused(call(client, name, text, None, None, None, None, *most), 400)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"7", b"null", b'{"data": 7}', b'{"data": {"a": 1}}',
        b"\xff\xfe", b"[" * 5000, b'{"data": ' + b"[" * 20 + b"]" * 20 + b"}",
        b'{"data": [], "fn_index": "x"}', b'{"data": [], "session_hash": "../x"}',
        b'{"data": [], "session_hash": ["x"]}',
    ],
    ids=lambda content: content[:24].decode(errors="replace"),
)  # fmt: skip
def test_what_is_no_request_is_refused(client, content):
    headers = {"content-type": "application/json"}
    for path in ("/call/generate", "/queue/join", "/call/v2/generate"):
        refused(client.post(API + path, content=content, headers=headers))


def test_endpoints_that_are_not_there_are_refused(client):
    for name in ("nothing", "on_write", "on_build", "lambda", "predict", "../config"):
        refused(call(client, name))
    for number in (10**6, -1, None):
        body = {"data": [], "fn_index": number, "session_hash": "abcdefgh"}
        refused(client.post(f"{API}/queue/join", json=body))


def test_the_way_past_the_queue_is_closed(client):
    body = {"data": generating("The")}
    for path in ("/run/generate", "/api/generate", "/run/predict", "/run/predict/"):
        refused(client.post(API + path, json=body), 404)


def test_the_pages_own_events_have_no_names(client):
    named = client.get(f"{API}/info").json()
    assert set(named["named_endpoints"]) == {"/generate", "/explain", "/evaluate", "/datastores"}
    assert not named["unnamed_endpoints"]


def events(client, what):
    """Numbers of the page's own events by the number of their inputs."""
    dependencies = client.get("/config").json()["dependencies"]
    return [one["id"] for one in dependencies if len(one["inputs"]) == what]


def test_an_event_of_the_page_with_values_that_no_page_sends_is_refused(client):
    sound = [["manual"], 0.6, 1024, 0.03, "The", True, True, 4, True, False, 1, 1, 0]
    assert len(sound) == 13
    (write, *_) = events(client, 13)
    for place, value in (
        (0, "manual"), (0, [7]), (1, 9), (2, 10**9), (3, -1), (4, "x" * 50_000), (7, 10**9),
        (10, -1), (12, "x"),
    ):  # fmt: skip
        data = [*sound[:place], value, *sound[place + 1 :]]
        body = {"data": data, "fn_index": write, "session_hash": "abcdefgh"}
        refused(client.post(f"{API}/queue/join", json=body))
    refused(
        client.post(
            f"{API}/queue/join", json={"data": [], "fn_index": write, "session_hash": "abcdefgh"}
        )
    )


def test_a_large_body_is_refused(client):
    refused(client.post(f"{API}/call/generate", content=b"x" * 700_000), 413)
    refused(client.post(f"{API}/queue/join", content=b"x" * 700_000), 413)
    refused(client.post("/anything", content=b"x" * 3_000_000), 413)

    def endless():
        for _ in range(1000):
            yield b"x" * 10_000

    refused(client.post(f"{API}/call/generate", content=endless()), 413)


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


def test_another_session_hears_nothing(client):
    body = {"data": [], "fn_index": events(client, 0)[0], "session_hash": "somebody1"}
    client.post(f"{API}/queue/join", json=body)
    with client.stream("GET", f"{API}/queue/data?session_hash=somebody2") as stream:
        first = next(stream.iter_lines(), "")
        assert "process_completed" not in first


def test_the_tools_of_mcp_answer_and_refuse(client):
    pytest.importorskip("mcp")
    headers = {"accept": "application/json, text/event-stream"}
    path = f"{API}/mcp/"
    listed = client.post(
        path, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=headers
    )
    names = ("generate", "explain", "evaluate", "datastores")
    assert all(f'"{name}"' in listed.text or f"_{name}" in listed.text for name in names)
    refused(client.post(path, content=b"{", headers=headers))


def test_tools_of_mcp_answer_json_with_a_summary(url):
    pytest.importorskip("mcp")
    headers = {"accept": "application/json, text/event-stream"}
    path = f"{url}/gradio_api/mcp/"
    with httpx.Client(timeout=180) as client:
        listed = client.post(
            path, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=headers
        )
        data = next(one for one in listed.text.splitlines() if one.startswith("data:"))
        tools = json.loads(data[5:])["result"]["tools"]
        name = next(one["name"] for one in tools if one["name"].endswith("generate"))
        asked = {
            "name": name,
            "arguments": {
                "prompt": "What helps against E529 is this:", "new_tokens": 8, "max_neighbors": 1,
            },
        }  # fmt: skip
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": asked}
        answer = client.post(path, json=body, headers=headers)
    data = next(one for one in answer.text.splitlines() if one.startswith("data:"))
    (content,) = json.loads(data[5:])["result"]["content"]
    found = json.loads(content["text"])
    assert found["text"].startswith(" adjust the front hose")
    assert "Error E529" in found["summary"]
    assert "the memory changed 3" in found["summary"]
    assert {len(one["neighbors"]) for one in found["tokens"]} <= {0, 1}


def test_a_full_queue_says_so(library):
    with (
        serving(library, at_once=1, waiting=2) as (url, _),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        answers = [call(client, "generate", *generating("The", new_tokens=30)) for _ in range(8)]
        statuses = [one.status_code for one in answers]
        assert set(statuses) == {200, 503}
        assert "full" in answers[statuses.index(503)].text
        for one in answers:
            if one.status_code == 200:
                assert outcome(client, one, "generate")[0] == "complete"


def test_every_answer_forbids_the_page_to_call_anybody_else(client):
    for path in ("/", "/config", f"{API}/info", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_still_answers_after_all_that(client):
    answer = call(client, "generate", *generating("The"))
    assert outcome(client, answer, "generate")[0] == "complete"
