"""Checks that the page and the server share: names of the host, and bounded bodies.

Another site can point a name of its own to this server, and so make a visitor's browser call it
(DNS rebinding). So requests under foreign names, and from pages of other sites, are refused.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Any

from starlette.responses import JSONResponse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Form = Callable[[str, int], Any]  # makes the content of a refusal from its line and status

HOSTS = "KNN_LOGITS_APP_HOSTS"
# The most digits of a length that a client names.
_DIGITS = 15
# A name or an address, and a port. Nothing else may stand in a Host header, such as a user.
_HOST = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.IGNORECASE)


class Names:
    """The names of a server: its machine, IP addresses, named sites, the Space."""

    def __init__(self, sites: Iterable[str] = (), host: str | None = None) -> None:
        sites = [*sites, *os.environ.get(HOSTS, "").split(",")]
        if os.environ.get("SPACE_ID"):
            sites.append(os.environ.get("SPACE_HOST") or "*.hf.space")
        machine = socket.gethostname().lower()
        self._sites = [site.strip().lower() for site in sites if site.strip()]
        self._hosts = [*self._sites, "localhost", machine, f"{machine}.local", (host or "").lower()]

    def foreign(self, scope: Message) -> str | None:
        """Whether the "host" or the "origin" of a request is foreign; a missing host is."""
        hosts = header(scope, b"host")
        if not hosts:
            return "host"
        hosts += header(scope, b"x-forwarded-host")
        for host in hosts:
            name = _name(host)
            if not name or not (_is_address(name) or _matches(name, self._hosts)):
                return "host"
        same = {host.lower() for host in hosts}
        for origin in header(scope, b"origin"):
            place = origin.partition("://")[2].lower()
            if not (name := _name(place)) or not (place in same or _matches(name, self._sites)):
                return "origin"
        return None


def _name(host: str) -> str:
    match = _HOST.fullmatch(host)
    return match["name"].strip("[]").lower() if match else ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name.rstrip("."), pattern) for pattern in patterns)


def header(scope: Message, name: bytes) -> list[str]:
    """Returns the values of a header in a request of ASGI."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


class Door:
    """The outermost ASGI application, before the headers for other sites that gradio would add."""

    def __init__(self, app: Any, names: Names | None, advice: str, form: Form) -> None:
        self._app, self._names, self._advice, self._form = app, names, advice, form

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        refused = self._refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
            return
        line, status = refused
        answer = JSONResponse(self._form(line, status), status, {"connection": "close"})
        await answer(scope, receive, send)

    def _refused(self, scope: Message) -> tuple[str, int] | None:
        # Of two lengths a proxy may read the other (RFC 9112).
        if header(scope, b"transfer-encoding") and header(scope, b"content-length"):
            return "send either Content-Length or Transfer-Encoding", 400
        foreign = self._names.foreign(scope) if self._names is not None else None
        if foreign is None:
            return None
        if foreign == "host":
            return f"this server does not answer under that name: {self._advice}", 403
        return f"pages of another site may not call this server: {self._advice}", 403


async def read_body(
    scope: Message, receive: Receive, most: int, refuse: Callable[[int, str], Exception]
) -> bytes:
    too_large = refuse(413, f"the request is larger than the {most:,} bytes that are allowed")
    for length in header(scope, b"content-length"):
        if not length.isdecimal() or len(length) > _DIGITS or int(length) > most:
            raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise refuse(400, "the request ended before its whole body arrived: send it again")
        body += message.get("body", b"")
        if len(body) > most:
            raise too_large
        if not message.get("more_body"):
            return bytes(body)


def again(body: bytes, receive: Receive) -> Receive:
    """Makes a `receive` that first returns a body that was read already."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
