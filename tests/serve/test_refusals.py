"""What no client should send: one line in OpenAI's form, and never a traceback."""

import json
import socket

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knn_logits.errors import ConfigError, StorageError
from knn_logits_serve import bodies
from knn_logits_serve.bodies import refusal_of
from knn_logits_serve.server import Settings
from serve.conftest import PROMPT, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GOOD = {"model": "tiny+texts", "prompt": PROMPT, "max_tokens": 1}


def refused(answer, status=400):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"].splitlines()) == 1
    assert "Traceback" not in answer.text
    assert 'File "' not in answer.text
    return error


MESSAGE = {"role": "user", "content": "a"}
MANY = {
    "parts of many messages": {"messages": [{"role": "user", "content": [{}] * 400}] * 100},
    "lists of tokens": {"prompt": [[1]] * 9000},
    "stops": {"stop": ["a" * 300] * 9000},
}


@pytest.mark.parametrize("kind", MANY)
def test_a_body_is_checked_up_to_its_first_error_only(kind):
    """Each error takes a kilobyte, and a body may have a million."""
    body = {"model": "tiny", "prompt": "a", "messages": [MESSAGE], **MANY[kind]}
    chosen = bodies.CompletionBody if "prompt" in MANY[kind] else bodies.ChatBody
    with pytest.raises(bodies.ValidationError) as caught:
        chosen.model_validate(body)
    # A union has an error of each of its branches.
    assert caught.value.error_count() <= 6


@pytest.mark.parametrize(
    ("changed", "line", "param"),
    [
        ({"model": None}, "model", "model"),
        ({"prompt": []}, "prompt", "prompt"),
        ({"prompt": ""}, "the prompt is empty", "prompt"),
        ({"prompt": [1, "a"]}, "prompt", "prompt"),
        ({"prompt": [384]}, "384 tokens", "prompt"),
        ({"prompt": "crane " * 400}, "context of 256", None),
        ({"max_tokens": 0}, "ask for a token", "max_tokens"),
        ({"max_tokens": True}, "max_tokens", "max_tokens"),
        ({"max_tokens": 1000}, "context of 256", "max_tokens"),
        ({"temperature": -1}, "temperature", "temperature"),
        ({"n": 2}, "n is not supported", "n"),
        ({"stop": ["", "a"]}, "stop: ", "stop"),
        ({"top_k": 40.5}, "top_k", "top_k"),
        ({"prompt": "\ud800"}, "half a character", None),
    ],
    ids=str,
)
def test_a_field_that_makes_no_sense_is_named(http, changed, line, param):
    body = json.dumps({**GOOD, **changed})
    error = refused(http.post(COMPLETIONS, content=body))
    assert line in error["message"]
    assert error["param"] == param


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "  "}]}, "no text"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "parts of the type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": {"a": 1}}]}]}, "messages.0.content"),
        ({"tool_choice": "required"}, "tool_choice is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"logprobs": True}, "a chat has no logprobs"),
        ({"max_completion_tokens": 0}, "ask for a token"),
    ],
    ids=str,
)
def test_a_chat_that_makes_no_sense_is_refused(http, changed, line):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], **changed}
    assert line in refused(http.post(CHAT, json=body))["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"7", b"null", b"\xff\xfe", b"NaN", b'{"model": "tiny+texts"}',
             b"[" * 100_000, b'{"a":' * 50_000, b'{"model":"a\xed\xa0\x80"}', b"1" * 5000,
             json.dumps(GOOD).encode("utf-16"), b'{"model":"tiny","prompt":"a","top_p":NaN}',
             b'{"model":"tiny","prompt":"a","temperature":1e999}']
)  # fmt: skip
def test_a_body_that_is_none_is_refused(http, body):
    refused(http.post(COMPLETIONS, content=body))
    refused(http.post(CHAT, content=body))


def test_unknown_models_and_places_are_not_found(http):
    error = refused(http.post(COMPLETIONS, json={**GOOD, "model": "gpt-4"}), 404)
    assert error["code"] == "model_not_found"
    assert "tiny+texts" in error["message"]
    refused(http.get("/v1/models/gpt-4"), 404)
    refused(http.get("/v1/nothing"), 404)
    error = refused(http.post("/v1/embeddings", json={"model": "tiny", "input": "a"}), 404)
    assert "POST /v1/embeddings" in error["message"]
    assert "/v1/chat/completions" in error["message"]
    refused(http.get(COMPLETIONS), 405)
    refused(http.get("/docs"), 404)
    assert http.get("/health").json() == {"status": "ok"}


def test_values_that_clients_send_for_nothing_or_that_nobody_knows_are_taken(http):
    usual = http.post(COMPLETIONS, json={**GOOD, "max_tokens": 16}).json()["choices"][0]["text"]
    changed = {"max_tokens": -1, "top_k": 40.0, "stop": "", "seed": 1.0, "n": 1.0}
    answer = http.post(COMPLETIONS, json={**GOOD, **changed, "temperature": 0})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == usual
    assert http.post(COMPLETIONS, json={**GOOD, "stop": [""]}).status_code == 200
    unknown = {"user": "me", "metadata": {"a": 1}, "store": False}
    unknown |= {"tools": [{"type": "function"}], "tool_choice": "none"}
    assert http.post(COMPLETIONS, json={**GOOD, **unknown}).status_code == 200


def test_foreign_names_and_origins_are_refused(http):
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        for method, path in (("GET", "/v1/models"), ("OPTIONS", COMPLETIONS)):
            answer = http.request(method, path, headers=headers)
            assert "--name" in refused(answer, 403)["message"]
            assert "access-control-allow-origin" not in answer.headers


def test_a_named_site_may_call(served):
    with serving(served, names=("ui.example.org",)) as running:
        headers = {"host": "ui.example.org", "origin": "https://ui.example.org"}
        answer = httpx.get(f"{running.url}/v1/models", headers=headers)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://ui.example.org"
        asks = {
            **headers,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        }
        before = httpx.options(f"{running.url}{CHAT}", headers=asks)
        assert "authorization" in before.headers["access-control-allow-headers"]
        other = {"host": "ui.example.org", "origin": "https://other.example.org"}
        refused(httpx.get(f"{running.url}/v1/models", headers=other), 403)


def test_with_a_key_only_who_knows_it_may_ask(served, openai):
    with serving(served, key="s3cret-ü") as running:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
            error = refused(httpx.get(f"{running.url}/v1/models", headers=headers), 401)
            assert error["code"] == "invalid_api_key"
        assert httpx.get(f"{running.url}/health").status_code == 200
    # The last byte of this key is a blank in Latin-1, which is how headers are read.
    with serving(served, key="s3cret-à") as running:
        headers = {"authorization": "Bearer s3cret-à".encode()}
        assert httpx.get(f"{running.url}/v1/models", headers=headers).status_code == 200
    with serving(served, key="s3cret") as running:
        headers = {"authorization": "Bearer s3cret", "host": "anything.example"}
        headers["origin"] = "https://page.example"
        answer = httpx.get(f"{running.url}/v1/models", headers=headers)
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        with running.client("s3cret") as client:
            assert client.models.list().data
        with running.client("no") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()


def test_a_request_that_is_too_large_is_refused_before_it_is_read(running):
    with socket.create_connection(("127.0.0.1", running.port)) as line:
        line.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
        )
        line.settimeout(60)
        answer = b""
        while b"4,000,000 bytes" not in answer and (more := line.recv(4096)):
            answer += more
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"4,000,000 bytes" in answer


def test_a_request_with_two_lengths_ends_its_connection(running):
    """A proxy before the server may read the other length, and so another next request."""
    hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: {5 + len(hidden)}"
    with socket.create_connection(("127.0.0.1", running.port)) as line:
        line.settimeout(60)
        line.sendall(head.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden)
        answer = b""
        while more := line.recv(4096):
            answer += more
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"either Content-Length or Transfer-Encoding" in answer
    assert answer.count(b"HTTP/1.1") == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150)
@given(st.dictionaries(
    st.sampled_from(["model", "prompt", "messages", "n", "stop", "knn", "logprobs", "stream",
                     "seed", "max_tokens", "echo", "logit_bias", "stream_options", "temperature"]),
    json_values, max_size=6,
))  # fmt: skip
def test_any_values_are_answered_with_one_line(http, content):
    for path in (COMPLETIONS, CHAT):
        answer = http.post(path, content=json.dumps({"model": "tiny", **content}).encode())
        if answer.status_code != 200:
            refused(answer, answer.status_code)
            assert answer.status_code in (400, 404)


def test_an_empty_key_is_refused():
    with pytest.raises(ConfigError, match="the API key is empty"):
        Settings(key=" ")


def test_an_error_of_the_datastore_shows_no_path():
    refusal = refusal_of(StorageError("/secret/store is gone"))
    assert refusal.status == 500
    assert str(refusal) == "the datastore cannot be asked (StorageError): try again"


@pytest.mark.parametrize(
    ("field", "value", "nothing"),
    [
        ("typical_p", 0.5, 1.0), ("mirostat", 1, 0), ("logit_bias", {"5": 1}, {}),
        ("ignore_eos", True, False), ("stop_token_ids", [1], []),
        ("reasoning_effort", "high", "none"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused_by_name_unless_it_is_off(http, field, value, nothing):
    error = refused(http.post(COMPLETIONS, json={**GOOD, field: value}))
    assert error["message"].startswith(f"{field} is not supported here")
    assert error["param"] == field
    assert http.post(COMPLETIONS, json={**GOOD, field: nothing}).status_code == 200
