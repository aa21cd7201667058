"""What stands before the whole server: under which names it answers, and how long it waits.

A page on another site could make a visitor's browser call this one, under a name of its own that
it lets point here (DNS rebinding): names that are not this host's are refused, and so is whatever
another site's page sends. This stands before gradio's own layers, which would allow it by headers.
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

    Always those of this machine, and addresses in digits, which no name server can turn elsewhere.
    On a Hub Space the Space's own.

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
        """Whether a page from there may call: it is this page, or was named.

        Args:
            origin: Where the calling page is from.
            hosts: Where it calls, with the port.
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
    """The outermost ASGI application: passes on what is meant for this server.

    Args:
        app: What stands behind it.
        names: Under which names it answers.
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
            return f"this server does not answer under that name; name it in {HOSTS}"
        if not all(self._names.of_origin(one, hosts) for one in _values(scope, b"origin")):
            return f"pages of another site may not call this server; name the site in {HOSTS}"
        return None


def _values(scope: Message, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def patient(protocol: Any, seconds: float = HEAD_SECONDS) -> Any:
    """The web server's protocol, which waits so long for a request's head and no longer.

    Args:
        protocol: That of uvicorn, which waits for ever.
        seconds: From the connection, or from the first byte after an answer.
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
            # A protocol that was changed to another one is that one's matter.
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
    """Sets the door before a server that listens already; every new connection meets it.

    Args:
        server: uvicorn's.
        names: Under which names it answers.
    """
    config = server.config
    config.loaded_app = Door(config.loaded_app, names)
    config.http_protocol_class = patient(config.http_protocol_class)
