"""The outermost layer of the server checks the key, the host's name and the size of a request.

Every refusal is one line in OpenAI's form. Errors of the layers behind it are answered without a
traceback.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

from knn_logits_app.door import Message, Names, Receive, Send, again, read_body
from knn_logits_serve.refusals import Refusal, refusal_of

logger = logging.getLogger("knn_logits.serve")
# These paths need no key.
_OPEN = ("/health",)
# The body of a refused request is read and thrown away, up to these limits. A client that is still
# sending when the connection closes would never read the answer.
_DRAINED_BYTES, _DRAINED_SECONDS, _PAUSE_SECONDS = 64_000_000, 10.0, 0.3


class Guard:
    """The ASGI middleware that checks every request."""

    def __init__(
        self,
        app: Any,
        *,
        key: str | None,
        names: Sequence[str],
        body_bytes: int,
        host: str | None = None,
    ) -> None:
        self._app = app
        self._key = None if key is None else key.encode()
        self._names = Names(names, host)
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
            return  # Pages of other sites do not know the key, so no further check is needed.
        hosts = _values(scope, b"host")
        for value in [*hosts, *_values(scope, b"x-forwarded-host")]:
            if not self._names.of_host(value):
                raise Refusal(
                    f"this server does not answer under the name {value[:80]!r}: give it with "
                    "--name, or set an API key",
                    403,
                )
        if not hosts:
            raise Refusal("the request has no Host header: send one", 400)
        for value in _values(scope, b"origin"):
            if not self._names.of_origin(value, hosts):
                raise Refusal(
                    "pages of another site may not call this server: name the site with --name, "
                    "or set an API key",
                    403,
                )

    def _check_key(self, scope: Message) -> None:
        if self._key is None or scope["path"] in _OPEN:
            return
        for value in _values(scope, b"authorization"):
            kind, _, credentials = value.partition(" ")
            right = hmac.compare_digest(credentials.strip().encode("latin-1", "replace"), self._key)
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
    """Answers with a refusal."""
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
    """Reads the rest of a body and throws it away, until it ends or its sender pauses."""
    size, end = 0, time.monotonic() + _DRAINED_SECONDS
    while size < _DRAINED_BYTES and time.monotonic() < end:
        try:
            message = await asyncio.wait_for(receive(), _PAUSE_SECONDS)
        except asyncio.TimeoutError:
            return
        size += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return
