"""The outermost layer of the server checks the host's name and limits the wait for a request.

Another site can make a name of its own point to this server, and so make a visitor's browser call
it (DNS rebinding). So requests for names that are not this host's are refused. Requests from pages
of other sites are refused as well. The check has to run before gradio's own layers, because their
CORS headers would allow such requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]

HOSTS = "KNN_LOGITS_APP_HOSTS"
HEAD_SECONDS = 10.0


class Names:
    """The names under which this server answers.

    These are always the names of this machine, and IP addresses, which no name server can redirect.
    On a Hub Space the Space's own name is added.

    Args:
        more: Further names, such as "knn.example.org" or "*.example.org".
    """

    def __init__(self, more: Iterable[str] = ()) -> None:
        given = [*more, *os.environ.get(HOSTS, "").split(",")]
        if os.environ.get("SPACE_ID"):
            given.append(os.environ.get("SPACE_HOST") or "*.hf.space")
        self._given = [one.strip().lower() for one in given if one.strip()]
        mine = socket.gethostname().lower()
        self._mine = [*self._given, "localhost", mine, f"{mine}.local"]

    def of_host(self, host: str) -> bool:
        """Whether a request for this host and port is meant for this server."""
        name = _name(f"//{host}")
        return name is not None and (_is_address(name) or _among(name, self._mine))

    def of_origin(self, origin: str, hosts: Iterable[str]) -> bool:
        """Whether a page of an origin may call. It has to be this page, or a site that was named.

        Args:
            origin: The origin of the calling page.
            hosts: The hosts that the request names, with their ports.
        """
        name = _name(origin)
        if name is None:
            return False
        place = urlsplit(origin).netloc.lower()
        return place in {one.lower() for one in hosts} or _among(name, self._given)


def _name(address: str) -> str | None:
    try:
        parts = urlsplit(address)
        _ = parts.port
        return parts.hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _among(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name.rstrip("."), one) for one in patterns)


class Door:
    """The outermost ASGI application, which passes on only requests meant for this server.

    Args:
        app: The application behind it.
        names: The names under which the server answers.
    """

    def __init__(self, app: Any, names: Names) -> None:
        self._app = app
        self._names = names

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Passes a request on, or refuses it."""
        line = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if line is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            body = json.dumps({"detail": line}).encode()
            await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Message) -> str | None:
        hosts = _values(scope, b"host") + _values(scope, b"x-forwarded-host")
        if not hosts or not all(self._names.of_host(one) for one in hosts):
            return f"this server does not answer under that name: add the name to {HOSTS}"
        if not all(self._names.of_origin(one, hosts) for one in _values(scope, b"origin")):
            return f"pages of another site may not call this server: add the site to {HOSTS}"
        return None


def _values(scope: Message, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def patient(protocol: Any, seconds: float = HEAD_SECONDS) -> Any:
    """Limits how long the web server's protocol waits for the head of a request.

    Args:
        protocol: The protocol class of uvicorn, which waits without a limit.
        seconds: The limit in seconds. It starts with the connection, or with the first byte after
            an answer.
    """

    class Patient(protocol):  # type: ignore[misc]
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            if self._waiting is None and not self._busy():
                self._wait()
            super().data_received(data)
            # After an upgrade, such as to a websocket, another protocol is responsible.
            if self._busy() or self.transport.get_protocol() is not self:
                self._done()

        def connection_lost(self, exc: Exception | None) -> None:
            self._done()
            super().connection_lost(exc)

        def _busy(self) -> bool:
            cycle = self.cycle
            return cycle is not None and not cycle.response_complete

        def _wait(self) -> None:
            self._waiting = self.loop.call_later(seconds, self.transport.abort)

        def _done(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return Patient


def close_door(server: Any, names: Names) -> None:
    """Puts the door in front of a server that listens already, for every new connection.

    Args:
        server: The server of uvicorn.
        names: The names under which it answers.
    """
    config = server.config
    config.loaded_app = Door(config.loaded_app, names)
    config.http_protocol_class = patient(config.http_protocol_class)
