"""Reads the body of a request within limits of size and time, and passes it on unchanged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

_SECONDS = 30.0
# The most digits of a length that a client names.
_DIGITS = 15


async def read_body(
    scope: Message, receive: Receive, most: int, refuse: Callable[[int, str], Exception]
) -> bytes:
    """Reads a request's body.

    Args:
        scope: The ASGI scope of the request.
        receive: Returns the next message of the request.
        most: The most bytes that the body may have.
        refuse: Makes an exception from a status and a line. It is raised when the body is too
            large, arrives too slowly or ends early.
    """
    too_large = refuse(413, f"the request is larger than the {most:,} bytes that are allowed")
    for name, value in scope["headers"]:
        named = name == b"content-length"
        if named and (not value.isdigit() or len(value) > _DIGITS or int(value) > most):
            raise too_large
    parts: list[bytes] = []
    size, end = 0, time.monotonic() + _SECONDS
    while True:
        try:
            message = await asyncio.wait_for(receive(), max(0.01, end - time.monotonic()))
        except asyncio.TimeoutError:
            raise refuse(408, "the request took too long to arrive: send it again") from None
        if message["type"] == "http.disconnect":
            raise refuse(400, "the request ended before its whole body arrived: send it again")
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def again(body: bytes, receive: Receive) -> Receive:
    """Makes a `receive` that first returns a body that was read already."""
    given = False

    async def giving() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return giving
