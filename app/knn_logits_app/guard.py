"""Checks the path, size and form of every request, and refuses it before gradio sees it.

gradio would answer some requests with a traceback, a hang or a file of the server. Every answer
gets headers that keep the page from calling other servers.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from knn_logits_app.body import Message, Receive, again, read_body
from knn_logits_app.preview import page_address, with_preview
from knn_logits_app.quotas import Quotas, address_of
from knn_logits_app.uploads import handles, with_paths

Send = Callable[[Message], Awaitable[None]]

JSON_BYTES = 600_000
# The bytes that a browser writes around uploaded files.
FORM_BYTES = 40_000
# The time after which gradio deletes what was uploaded.
UPLOADED_SECONDS = 1800.0
_MOST_VALUES, _DEEPEST = 32, 8
_CALL = re.compile(r"/gradio_api/call/(v2/)?(?P<name>[^/]*)")
_HEARTBEAT = re.compile(r"/gradio_api/heartbeat/(?P<session>[^/]+)")
_SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")

# The page does not use these routes of gradio.
_CLOSED = (
    "/gradio_api/run/",
    "/gradio_api/api/",
    "/gradio_api/proxy=",
    "/gradio_api/file",
    "/gradio_api/stream/",
    "/gradio_api/custom_component/",
    "/gradio_api/component_server",
    "/gradio_api/process_recording",
    "/gradio_api/deep_link",
    "/gradio_api/vibe-",
    "/gradio_api/undo-vibe-edit",
    "/gradio_api/run-history",
    "/gradio_api/runs",
    "/gradio_api/profiling",
    "/gradio_api/dev/",
    "/monitoring",
)
_JOIN = ("/gradio_api/queue/join", "/gradio_api/call/", "/gradio_api/cancel", "/gradio_api/reset")
_QUEUE = ("/gradio_api/queue/join", "/gradio_api/call/")
_MCP = "/gradio_api/mcp"
_UNREADABLE = "the server cannot read this request: send it as the page's API describes"
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' "
        b"'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' "
        b"data: blob:; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; "
        b"form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class Refused(Exception):
    """A request is refused.

    Args:
        status: The status of the answer.
        detail: One line that says why.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass
class House:
    """The facts that the guard needs about the server behind it.

    Attributes:
        names: The endpoints that may be called by name, with the names of their arguments.
        upload_bytes: The most bytes of files in one upload.
        uploads: The folder of uploaded files.
        quotas: The most that one address may have.
        waiting: Counts the requests of an address that run the model or wait for it.
        present: A context that notes that a session's page is open.
    """

    names: Mapping[str, Sequence[str]]
    upload_bytes: int
    uploads: str
    quotas: Quotas
    waiting: Callable[[str], int]
    present: Callable[[str], AbstractContextManager[None]]


class Guard:
    """The ASGI middleware that checks every request.

    Args:
        app: The application that it protects.
        house: The facts about the server.
    """

    def __init__(self, app: Any, house: House) -> None:
        self._app = app
        self._house = house
        self._uploads: deque[tuple[float, str, int]] = deque()
        self._joining: Counter[str] = Counter()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, _is_client(scope))
        try:
            address = address_of(scope)
            scope["client"] = (address, 0)
            await self._guarded(scope, receive, answer, address)
        except Refused as refused:
            await answer.refuse(refused.status, str(refused))
        except Exception:
            # gradio failed on the request. Its traceback must not reach the visitor.
            await answer.refuse(400, _UNREADABLE)

    async def _guarded(
        self, scope: MutableMapping[str, Any], receive: Receive, answer: _Answer, address: str
    ) -> None:
        house, path = self._house, str(scope["path"])
        if path.startswith(_CLOSED):
            raise Refused(404, "there is no such page: open the page itself")
        called = _CALL.match(path)
        if called and called["name"] not in house.names:
            # The page's own events have names as well, but only the endpoints may be called.
            names = ", ".join(house.names)
            raise Refused(404, f"there is no such endpoint: the endpoints are {names}")
        beats = _HEARTBEAT.fullmatch(path)
        if beats:
            with house.present(beats["session"]):
                await self._app(scope, receive, answer)
            return
        if scope["method"] not in ("POST", "PUT", "PATCH", "DELETE"):
            if scope["method"] == "GET" and path == "/":
                answer.change = lambda body: with_preview(body, page_address(scope))
            await self._app(scope, receive, answer)
            return
        if path.rstrip("/").endswith("/upload"):
            body = await read_body(scope, receive, house.upload_bytes + FORM_BYTES, Refused)
            self._count(len(body), address)
            answer.change = lambda body: handles(body, house.uploads)
            await self._app(scope, again(body, receive), answer)
            return
        body = await read_body(scope, receive, JSON_BYTES, Refused)
        if path.startswith(_JOIN):
            check_body(body, house.names[called["name"]] if called and not called[1] else None)
        if path.startswith(_MCP):
            # gradio's MCP server calls the page over HTTP from this machine. The header keeps the
            # visitor's address.
            headers = [one for one in scope["headers"] if one[0] != b"x-forwarded-for"]
            scope["headers"] = [*headers, (b"x-forwarded-for", address.partition("/")[0].encode())]
        body = _with_paths(body, house.uploads)
        receive = again(body, receive)
        scope["headers"] = [
            (name, str(len(body)).encode() if name == b"content-length" else value)
            for name, value in scope["headers"]
        ]
        if not path.startswith(_QUEUE):
            await self._app(scope, receive, answer)
            return
        # `waiting` does not count requests that are just about to enter the queue.
        if house.waiting(address) + self._joining[address] >= house.quotas.waiting:
            raise Refused(503, "too many requests from your address are waiting: try again later")
        self._joining[address] += 1
        try:
            await self._app(scope, receive, answer)
        finally:
            self._joining[address] -= 1
            self._joining += Counter()

    def _count(self, size: int, address: str) -> None:
        now = time.monotonic()
        while self._uploads and now - self._uploads[0][0] > UPLOADED_SECONDS:
            self._uploads.popleft()
        mine = sum(one for _, whose, one in self._uploads if whose == address)
        everybodys = sum(one for _, _, one in self._uploads)
        quotas = self._house.quotas
        if mine + size > quotas.uploaded or everybodys + size > quotas.uploaded_by_all:
            raise Refused(503, "too much was uploaded recently: try again in half an hour")
        self._uploads.append((now, address, size))


def _with_paths(body: bytes, folder: str) -> bytes:
    """Replaces handles of uploaded files in a JSON body by paths. Other bodies stay unchanged."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return body
    try:
        found = with_paths(content, folder)
    except ValueError as error:
        raise Refused(400, str(error)) from None
    except RecursionError:
        raise Refused(400, "the request is nested too deeply: send flat JSON") from None
    return body if found == content else json.dumps(found).encode()


class _Answer:
    """Sends an answer with the page's headers, or a refusal in place of a server's error.

    Args:
        send: Sends a message of ASGI.
        to_client: Whether `gradio_client` made the request. It shows the line of a refusal only if
            the refusal has the form of gradio's own validation.
    """

    def __init__(self, send: Send, to_client: bool = False) -> None:
        self._send = send
        self._to_client = to_client
        self._begun = False
        self._refused = False
        # If set, this changes the whole body before it is sent.
        self.change: Callable[[bytes], bytes] | None = None
        self._held: tuple[Message, list[bytes]] | None = None

    async def __call__(self, message: Message) -> None:
        if self._refused:
            return
        if message["type"] == "http.response.start":
            if message["status"] >= 500 and message["status"] != 503:
                await self.refuse(400, _UNREADABLE)
                return
            self._begun = True
            message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
            if message["status"] >= 400:
                self.change = _one_line
                if self._to_client and message["status"] != 422:
                    message["status"] = 422
                    self.change = _for_client
            if self.change is not None and message["status"] != 204:
                self._held = message, []
                return
        elif self._held is not None:
            await self._finish(message)
            return
        await self._send(message)

    async def _finish(self, message: Message) -> None:
        """Collects the parts of a body that has to be changed, and sends it with the last part."""
        assert self._held is not None
        assert self.change is not None
        start, parts = self._held
        parts.append(message.get("body", b""))
        if message.get("more_body"):
            return
        self._held = None
        body = self.change(b"".join(parts))
        headers = [one for one in start["headers"] if one[0].lower() != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        await self._send({**start, "headers": [*headers, length]})
        await self._send({**message, "body": body})

    async def refuse(self, status: int, detail: str) -> None:
        """Answers with one line, unless an answer has begun already."""
        if self._begun or self._refused:
            self._refused = True
            return
        self._refused = True
        body = json.dumps({"detail": detail}).encode()
        if self._to_client:
            status, body = 422, _for_client(body)
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *_HEADERS]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _one_line(body: bytes) -> bytes:
    """Makes the detail of a refusal one line, without the `repr` of Python objects."""
    try:
        content = json.loads(body)
    except ValueError:
        return body
    detail = content.get("detail") if isinstance(content, dict) else None
    if not isinstance(detail, str):
        return body
    line = " ".join(detail.split())
    if " at 0x" in line or "<gradio" in line:
        line = _UNREADABLE
    return json.dumps({**content, "detail": line}).encode()


def _for_client(body: bytes) -> bytes:
    """Returns a refusal in the form in which `gradio_client` shows its line."""
    content = json.loads(_one_line(body))
    line = content.get("detail") if isinstance(content, dict) else None
    failed = {
        "__type__": "validate",
        "is_valid": False,
        "parameter_name": "request",
        "message": line if isinstance(line, str) else _UNREADABLE,
    }
    return json.dumps({"detail": [failed]}).encode()


def _is_client(scope: MutableMapping[str, Any]) -> bool:
    """Whether the request is one of `gradio_client` for a place in the queue."""
    agents = [value for name, value in scope["headers"] if name == b"user-agent"]
    return str(scope["path"]).startswith(_QUEUE) and any(b"gradio_client" in one for one in agents)


def check_body(body: bytes, names: Sequence[str] | None = None) -> None:
    """Refuses a request for the queue that neither the page nor a client would send.

    Args:
        body: The body of the request, which should be JSON.
        names: The names of the endpoint's arguments; None accepts any number of values.

    Raises:
        Refused: with the status 400, when the request is not allowed.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the request is not JSON: send a JSON object") from None
    if not isinstance(content, dict):
        raise Refused(400, "the request is JSON, but not an object: send a JSON object")
    session = content.get("session_hash")
    if session is not None and not (isinstance(session, str) and _SESSION.fullmatch(session)):
        raise Refused(400, "session_hash must have 1 to 64 letters, digits, - or _")
    for name in ("fn_index", "trigger_id"):
        number = content.get(name)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise Refused(400, f"{name} must be a whole number")
    data = content.get("data")
    if data is not None and (not isinstance(data, list) or len(data) > _MOST_VALUES):
        raise Refused(400, f"data must be a list of at most {_MOST_VALUES} values")
    if names is not None and len(data or []) != len(names):
        raise Refused(
            400,
            f"data has {len(data or [])} values, but the endpoint takes {len(names)}: "
            + ", ".join(names),
        )
    if _depth(content) > _DEEPEST:
        raise Refused(400, "the request is nested too deeply: send flat JSON")


def _depth(value: Any) -> int:
    """Returns how deeply a value is nested, counted up to one more than is allowed."""
    level, depth = [value], 0
    while level and depth <= _DEEPEST:
        depth += 1
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


def middleware(house: House) -> list[Any]:
    """Returns the guard as middleware for a FastAPI application.

    Args:
        house: The facts about the server.
    """
    from starlette.middleware import Middleware

    return [Middleware(Guard, house=house)]
