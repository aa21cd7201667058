"""Starts the server behind its guard, and ends it after running answers had time to finish.

The guard checks the key, the host's name and the size of a request. Every refusal is one line in
OpenAI's form, and errors of the layers behind are answered without a traceback.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse

from knn_logits.errors import ConfigError
from knn_logits_app.door import (
    TWO_LENGTHS,
    Message,
    Names,
    Receive,
    Send,
    again,
    has_two_lengths,
    header,
    patient,
    read_body,
)
from knn_logits_serve.line import Line, log_failure
from knn_logits_serve.refusals import Refusal, refusal_of
from knn_logits_serve.routes import build_app
from knn_logits_serve.served import Served

# These paths need no key.
_OPEN_PATHS = ("/health",)
# The body of a refused request is read and thrown away, up to these limits. A client that is still
# sending when the connection closes would never read the answer.
_DRAINED_BYTES, _DRAINED_SECONDS, _PAUSE_SECONDS = 64_000_000, 10.0, 0.3


class Guard:
    """The ASGI middleware that checks every request, and answers what it refuses."""

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
        # Only pages of sites that `_check_names` lets pass get here.
        self._with_cors = CORSMiddleware(
            self._with_key, allow_origin_regex=".*", allow_methods=["*"], allow_headers=["*"]
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._refusing(self._with_names, scope, receive, send)

    async def _with_names(self, scope: Message, receive: Receive, send: Send) -> None:
        self._check_names(scope)
        await self._with_cors(scope, receive, send)

    async def _with_key(self, scope: Message, receive: Receive, send: Send) -> None:
        await self._refusing(self._with_body, scope, receive, send)

    async def _with_body(self, scope: Message, receive: Receive, send: Send) -> None:
        self._check_key(scope)
        if scope["method"] == "POST":
            body = await read_body(
                scope, receive, self._body_bytes, lambda status, line: Refusal(line, status)
            )
            receive = again(body, receive)
        scope["is_read"] = True
        await self._app(scope, receive, send)

    async def _refusing(self, app: Any, scope: Message, receive: Receive, send: Send) -> None:
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
            await send(message)

        try:
            await app(scope, receive, sending)
        except Exception as error:
            if not isinstance(error, Refusal):
                log_failure(error)
            if begun:
                return
            refusal = refusal_of(error)
            headers = refusal.headers
            if not scope.get("is_read"):
                await _drain(receive)
                headers = {**headers, "connection": "close"}
            await JSONResponse(refusal.content, refusal.status, headers)(scope, receive, sending)

    def _check_names(self, scope: Message) -> None:
        if has_two_lengths(scope):
            raise Refusal(TWO_LENGTHS)
        if self._key is not None:
            return  # Pages of other sites do not know the key, so no further check is needed.
        foreign = self._names.foreign(scope)
        if foreign == ("host", ""):
            raise Refusal("the request has no Host header: send one", 400)
        if foreign is None:
            return
        kind, name = foreign
        refused = (
            f"this server does not answer under the name {name[:80]!r}: give it with --name"
            if kind == "host"
            else "pages of another site may not call this server: name the site with --name"
        )
        raise Refusal(f"{refused}, or set an API key", 403)

    def _check_key(self, scope: Message) -> None:
        if self._key is None or scope["path"] in _OPEN_PATHS:
            return
        for value in header(scope, b"authorization"):
            kind, _, credentials = value.partition(" ")
            given = credentials.strip(" \t").encode("latin-1", "replace")
            right = hmac.compare_digest(given, self._key)
            if kind.lower() == "bearer" and right:
                return
        raise Refusal(
            "the API key is missing or wrong: send it as Authorization: Bearer KEY",
            401,
            code="invalid_api_key",
        )


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


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"  # by default only this machine can ask
    port: int = 8000  # 0 takes a free one
    key: str | None = None  # that clients have to send
    names: tuple[str, ...] = ()  # further names under which the server answers
    at_once: int = 2  # requests that run at the same time
    waiting: int = 64  # further requests, which are queued
    seconds: float = 300.0  # that one request may run
    patience: float = 10.0  # seconds that running requests get when the server ends
    body_bytes: int = 4_000_000

    def __post_init__(self) -> None:
        """Refuses a key without any character, as an unset variable gives it."""
        if self.key is not None and not self.key.strip():
            raise ConfigError(
                "the API key is empty: set a key, or omit --api-key (KNN_LOGITS_API_KEY)"
            )


class Server(uvicorn.Server):
    """The server of uvicorn, with a queue of requests before the model."""

    def __init__(self, served: Served, settings: Settings) -> None:
        self._settings = settings
        self.line = Line(settings.at_once, settings.waiting, settings.seconds)
        guard = Guard(
            build_app(served, self.line),
            key=settings.key,
            names=settings.names,
            host=settings.host,
            body_bytes=settings.body_bytes,
        )
        config = uvicorn.Config(
            guard,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=5,
        )
        config.load()
        config.http_protocol_class = patient(config.http_protocol_class)
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the queue first, and then the connections."""
        for server in self.servers:
            server.close()  # New connections are refused from now on.
        await self.line.close(self._settings.patience)
        await super().shutdown(sockets)


def listen(settings: Settings) -> socket.socket:
    """Opens the socket that the server will listen on."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        # asyncio sends small parts of an answer at once only where the protocol is named. Otherwise
        # each waits for the client to confirm the one before, which takes 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"the server cannot listen on this address ({reason}): choose another --port or --host"
        ) from error
    return listener


def serve(served: Served, settings: Settings | None = None, *, on_ready: Any = None) -> None:
    """Serves a model until the process is told to end."""
    settings = settings or Settings()
    bound = listen(settings)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // settings.at_once))
    server = Server(served, settings)
    host, port = bound.getsockname()[:2]
    if on_ready is not None:
        bound.listen(2048)
        on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    server.run(sockets=[bound])
