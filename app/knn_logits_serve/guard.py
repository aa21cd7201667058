"""The outermost layer of the server: who may ask, under which name, and how much at a time.

What it refuses, it refuses in OpenAI's form and in one line. Nothing behind it shows a traceback.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from knn_logits_app.body import Message, Receive, again, read_body
from knn_logits_app.door import Names
from knn_logits_serve.refusals import Refusal, refusal_of

Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger("knn_logits.serve")
# A page may be told that the server lives, and no more.
_OPEN = ("/health",)
# What is refused unread is taken in and thrown away, as far as that goes: a client that is still
# sending when the connection closes never reads the answer.
_DRAINED_BYTES, _DRAINED_SECONDS, _PAUSE_SECONDS = 64_000_000, 10.0, 0.3


class Guard:
    """ASGI middleware.

    Args:
        app: What it protects.
        key: What a client has to know; None asks for nothing.
        names: Under which names the server answers, beside those of this machine, such as
            "knn.example.org"; their pages may call it too.
        body_bytes: Bytes of a request.
    """

    def __init__(self, app: Any, *, key: str | None, names: Sequence[str], body_bytes: int) -> None:
        self._app = app
        self._key = None if key is None else key.encode()
        self._names = Names(names)
        self._body_bytes = body_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = is_read = welcome = False
        origin = next(iter(_values(scope, b"origin")), None)

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = [*message.get("headers", []), *_HEADERS]
                if origin is not None and welcome:
                    headers += _cors(origin)
                message = {**message, "headers": headers}
            await send(message)

        try:
            self._check(scope)
            welcome = True
            if scope["method"] == "OPTIONS" and origin is not None:
                await sending({"type": "http.response.start", "status": 204})
                await sending({"type": "http.response.body"})
                return
            self._check_key(scope)
            if scope["method"] == "POST":
                body = await read_body(scope, receive, self._body_bytes, _refused)
                receive = again(body, receive)
            is_read = True
            await self._app(scope, receive, sending)
        except Exception as error:
            if not isinstance(error, Refusal):
                line = " ".join(str(error).split())
                logger.error("a request failed: %s: %s", type(error).__name__, line[:300])
            if not begun:
                if not is_read:
                    await _drain(receive)
                await refuse(refusal_of(error), sending, close=not is_read)

    def _check(self, scope: Message) -> None:
        if self._key is not None:
            return  # a page of another site does not know it
        hosts = _values(scope, b"host")
        for one in [*hosts, *_values(scope, b"x-forwarded-host")]:
            if not self._names.of_host(one):
                raise Refusal(
                    f"this server does not answer under the name {one[:80]!r}: give it with "
                    "--name, or set an API key",
                    403,
                )
        if not hosts:
            raise Refusal("the request names no host", 400)
        for one in _values(scope, b"origin"):
            if not self._names.of_origin(one, hosts):
                raise Refusal(
                    "pages of another site may not call this server: name the site with --name, "
                    "or set an API key",
                    403,
                )

    def _check_key(self, scope: Message) -> None:
        if self._key is None or scope["path"] in _OPEN:
            return
        for value in _values(scope, b"authorization"):
            kind, _, given = value.partition(" ")
            right = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._key)
            if kind.lower() == "bearer" and right:
                return
        raise Refusal(
            "the API key is missing or wrong: send it as Authorization: Bearer KEY",
            401,
            code="invalid_api_key",
        )


_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]


def _cors(origin: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin.encode("latin-1", "replace")),
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-allow-headers", b"authorization, content-type"),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Origin"),
    ]


async def refuse(refusal: Refusal, send: Send, *, close: bool) -> None:
    """Answers with a refusal, after which the connection may be of no more use."""
    body = json.dumps(refusal.content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _values(scope: Message, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _refused(status: int, line: str) -> Refusal:
    return Refusal(line, status)


async def _drain(receive: Receive) -> None:
    """Reads the rest of a body, until it ends or its sender waits."""
    size, end = 0, time.monotonic() + _DRAINED_SECONDS
    while size < _DRAINED_BYTES and time.monotonic() < end:
        try:
            message = await asyncio.wait_for(receive(), _PAUSE_SECONDS)
        except asyncio.TimeoutError:
            return
        size += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return
