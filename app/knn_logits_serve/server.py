"""Starts the server behind its guard, and ends it after running answers had time to finish.

The guard checks the key, the host's name and the size of a request. Every refusal is one line in
OpenAI's form, and errors of the layers behind are answered without a traceback.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse

from knn_logits.errors import ConfigError
from knn_logits_app.door import Door, Message, Names, Receive, Send, again, header, read_body
from knn_logits_serve.bodies import Refusal, refusal_of
from knn_logits_serve.routes import build_app
from knn_logits_serve.served import Served
from knn_logits_serve.writing import log_failure

_MAX_BODY = 4_000_000  # bytes
# The seconds that running requests get when the server ends.
_PATIENCE = 10


class Guard:
    """The ASGI middleware that checks every request, and answers what it refuses."""

    def __init__(self, app: Any, key: str | None) -> None:
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            self._check_key(scope)
            if scope["method"] == "POST":
                body = await read_body(
                    scope, receive, _MAX_BODY, lambda status, line: Refusal(line, status)
                )
                receive = again(body, receive)
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            pass  # the server ends, and uvicorn has said so: it would add a traceback
        except Exception as error:
            if not isinstance(error, Refusal):
                log_failure(error)
            if not begun:
                # The request's body may not have been read, so the connection is closed.
                refusal = refusal_of(error)
                headers = {**refusal.headers, "connection": "close"}
                answer = JSONResponse(refusal.content, refusal.status, headers)
                await answer(scope, receive, send)

    def _check_key(self, scope: Message) -> None:
        if self._key is None or scope["path"] == "/health":
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


def guarded(app: Any, settings: Settings) -> Door:
    """Puts the checks before an application. Only pages of named sites, or with the key, get in."""
    with_cors = CORSMiddleware(
        Guard(app, settings.key), allow_origin_regex=".*", allow_methods=["*"], allow_headers=["*"]
    )
    # Pages of other sites do not know the key, so no further check is needed.
    names = Names(settings.names, settings.host) if settings.key is None else None
    advice = "name it with --name, or set an API key"
    return Door(with_cors, names, advice, lambda line, status: Refusal(line, status).content)


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"  # by default only this machine can ask
    port: int = 8000  # 0 takes a free one
    key: str | None = None  # that clients have to send
    names: tuple[str, ...] = ()  # further names under which the server answers

    def __post_init__(self) -> None:
        """Refuses a key without any character, as an unset variable gives it."""
        if self.key is not None and not self.key.strip():
            raise ConfigError(
                "the API key is empty: set a key, or omit --api-key (KNN_LOGITS_API_KEY)"
            )


def server_of(served: Served, settings: Settings) -> uvicorn.Server:
    """Makes the server of an application. At its end running answers get some seconds."""
    config = uvicorn.Config(
        guarded(build_app(served), settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=_PATIENCE,
    )
    return uvicorn.Server(config)


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


def serve(served: Served, settings: Settings, *, on_ready: Any) -> None:
    """Serves a model until the process is told to end."""
    bound = listen(settings)
    server = server_of(served, settings)
    host, port = bound.getsockname()[:2]
    bound.listen(2048)
    on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    server.run(sockets=[bound])
