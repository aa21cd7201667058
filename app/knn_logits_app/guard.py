"""The outermost layer of the server: which requests there are, how large, and in what form.

What gradio's own routes would answer with a traceback, a hang or a file is refused before they see
it. Everything that is answered carries headers that keep a page from calling anybody else.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON_BYTES = 600_000
UPLOAD_BYTES = 2_000_000
# Of all visitors together, in the time after which gradio deletes what was uploaded.
UPLOADED_BYTES, UPLOADED_SECONDS = 200_000_000, 1800.0
_BODY_SECONDS = 30.0
_MOST_VALUES, _DEEPEST = 32, 8
_CALL = re.compile(r"/gradio_api/call/(v2/)?(?P<name>[^/]*)")
_SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")

# Routes of gradio that this page has no use for.
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
    """A request that is not passed on.

    Args:
        status: Of the answer.
        detail: One line.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Guard:
    """ASGI middleware.

    Args:
        app: What it protects.
        names: The endpoints that may be called by name.
    """

    def __init__(self, app: Any, names: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(names)
        self._uploads: deque[tuple[float, int]] = deque()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            path = str(scope["path"])
            if path.startswith(_CLOSED):
                raise Refused(404, "there is no such page")
            called = _CALL.match(path)
            if called and called["name"] not in self._names:
                # The page's own events have names as well, and no business being called by them.
                raise Refused(404, "there is no such endpoint")
            if scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
                upload = path.rstrip("/").endswith("/upload")
                body = await _read(scope, receive, UPLOAD_BYTES if upload else JSON_BYTES)
                if upload:
                    self._count(len(body))
                if path.startswith(_JOIN):
                    check_body(body)
                receive = _again(body, receive)
            await self._app(scope, receive, answer)
        except Refused as refused:
            await answer.refuse(refused.status, str(refused))
        except Exception:
            # What gradio could not make sense of; never its traceback.
            await answer.refuse(400, "this request makes no sense here")

    def _count(self, size: int) -> None:
        now = time.monotonic()
        while self._uploads and now - self._uploads[0][0] > UPLOADED_SECONDS:
            self._uploads.popleft()
        if sum(one for _, one in self._uploads) + size > UPLOADED_BYTES:
            raise Refused(503, "too much was uploaded lately; try again in half an hour")
        self._uploads.append((now, size))


class _Answer:
    """Sends an answer with the page's headers; a server's error becomes a refusal."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False
        self._refused = False

    async def __call__(self, message: Message) -> None:
        if self._refused:
            return
        if message["type"] == "http.response.start":
            if message["status"] >= 500 and message["status"] != 503:
                await self.refuse(400, "this request makes no sense here")
                return
            self._begun = True
            message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
        await self._send(message)

    async def refuse(self, status: int, detail: str) -> None:
        """Answers with one line, where no answer has begun."""
        if self._begun or self._refused:
            self._refused = True
            return
        self._refused = True
        body = json.dumps({"detail": detail}).encode()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *_HEADERS]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


async def _read(scope: MutableMapping[str, Any], receive: Receive, most: int) -> bytes:
    """A request's body, within bounds of size and time."""
    too_large = Refused(413, f"the request is larger than the {most:,} bytes that are allowed")
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value) > most):
            raise too_large
    parts: list[bytes] = []
    size, deadline = 0, time.monotonic() + _BODY_SECONDS
    while True:
        try:
            left = deadline - time.monotonic()
            message = await asyncio.wait_for(receive(), max(0.01, left))
        except asyncio.TimeoutError:
            raise Refused(408, "the request took too long to arrive") from None
        if message["type"] == "http.disconnect":
            raise Refused(400, "the request ended early")
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read already, and then what follows it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def check_body(body: bytes) -> None:
    """Refuses a request for the queue that no page and no client would send.

    Args:
        body: JSON.

    Raises:
        Refused: with the status 400.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the request is not JSON") from None
    if not isinstance(content, dict):
        raise Refused(400, "the request is not a JSON object")
    session = content.get("session_hash")
    if session is not None and not (isinstance(session, str) and _SESSION.fullmatch(session)):
        raise Refused(400, "the session is none")
    for name in ("fn_index", "trigger_id"):
        number = content.get(name)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise Refused(400, f"{name} is no number")
    data = content.get("data")
    if data is not None and (not isinstance(data, list) or len(data) > _MOST_VALUES):
        raise Refused(400, "data is not a list of values")
    if _depth(content) > _DEEPEST:
        raise Refused(400, "the request is nested too deeply")


def _depth(value: Any) -> int:
    """How deeply a value is nested, as far as that matters."""
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


def middleware(names: Collection[str]) -> list[Any]:
    """What a FastAPI app is given.

    Args:
        names: The endpoints that may be called by name.
    """
    from starlette.middleware import Middleware

    return [Middleware(Guard, names=names)]
