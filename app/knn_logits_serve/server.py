"""Starts the server, and ends it only after running answers had time to finish."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

import torch
import uvicorn

from knn_logits import ConfigError
from knn_logits_app.door import patient
from knn_logits_serve.guard import Guard
from knn_logits_serve.line import Line
from knn_logits_serve.routes import build_app
from knn_logits_serve.served import Served


@dataclass(frozen=True)
class Settings:
    """The settings of a server.

    Attributes:
        host: The address to listen on. By default it is this machine only.
        port: The port to listen on; 0 takes a free one.
        key: The API key that clients have to send; None needs no key.
        names: Further names under which the server answers.
        at_once: The most groups of requests that run at the same time.
        together: The most requests of a group, which are alike and written in one batch.
        waiting: The most requests that wait.
        seconds: The seconds that one request may run.
        patience: The seconds that running requests get to finish when the server ends.
        body_bytes: The most bytes of a request.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    names: tuple[str, ...] = ()
    at_once: int = 2
    together: int = 8
    waiting: int = 64
    seconds: float = 300.0
    patience: float = 10.0
    body_bytes: int = 4_000_000

    def __post_init__(self) -> None:
        """Refuses a key without any character, as an unset variable gives it."""
        if self.key is not None and not self.key.strip():
            raise ConfigError(
                "the API key is empty: give a key, or leave --api-key (KNN_LOGITS_API_KEY) out"
            )


class Server(uvicorn.Server):
    """The server of uvicorn, with a queue of requests before the model."""

    def __init__(self, served: Served, settings: Settings) -> None:
        self._settings = settings
        self._line = Line(settings.at_once, settings.waiting, settings.seconds, settings.together)
        guard = Guard(
            build_app(served, self._line),
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
        await self._line.close(self._settings.patience)
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
            f"the server cannot listen on this address ({reason}): give another --port or --host"
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
