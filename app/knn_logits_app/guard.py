"""Checks every request before gradio sees it, and makes each answer safe for the page.

gradio would answer some requests with a traceback, a hang or a file of the server.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from knn_logits_app.door import Message, Receive, Send, again, read_body

_MOST_JSON = 600_000  # bytes
# The bytes that a browser writes around uploaded files.
_FORM_BYTES = 40_000
_BEAT_SECONDS = 15.0
_API = "/gradio_api"
_HEARTBEAT = re.compile(rf"{_API}/heartbeat/(?P<session>[^/]+)")
# The page does not use these routes of gradio, of which some give files away.
_CLOSED = (
    "/monitoring",
    *(
        f"{_API}/{route}"
        for route in (
            "call/", "mcp", "proxy=", "file", "stream/", "custom_component/", "deep_link", "vibe-",
            "run-history", "runs", "profiling", "dev/",
        )
    ),
)  # fmt: skip
# The page sends bodies to these routes only; `/run/` and others would not wait in the queue.
_UPLOAD = f"{_API}/upload"
_SENT = tuple(f"{_API}/{route}" for route in ("queue/join", "cancel", "reset"))
_UNREADABLE = "the server cannot read this request: reload the page"
_UPLOADED = re.compile(r"/[0-9a-f]{16,128}/(?!\.{1,2}$)[^/\\\x00]{1,255}")
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
    """A request is refused, with a status and one line that says why."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Guard:
    """The ASGI middleware that checks every request."""

    def __init__(
        self,
        app: Any,
        *,
        upload_bytes: int,
        uploads: str,
        present: Callable[[str], AbstractContextManager[None]],
        left: Callable[[str], bool],
    ) -> None:
        self._app = app
        self._upload_bytes, self._folder = upload_bytes, uploads
        self._present, self._left = present, left

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        scope["arrived"] = time.monotonic()
        try:
            await self._pass_on(scope, receive, answer)
        except Refused as refused:
            await answer.refuse(refused.status, str(refused))
        except Exception:
            # gradio failed on the request. Its traceback must not reach the visitor.
            await answer.refuse(400, _UNREADABLE)

    async def _pass_on(self, scope: Message, receive: Receive, answer: _Answer) -> None:
        path = str(scope["path"])
        heartbeat = _HEARTBEAT.fullmatch(path)
        sends = scope["method"] in ("POST", "PUT", "PATCH", "DELETE")
        is_upload, most = path.rstrip("/") == _UPLOAD, _MOST_JSON
        if is_upload:
            most = self._upload_bytes + _FORM_BYTES
        if sends:
            body = await read_body(scope, receive, most, Refused)
            receive = again(body, receive)
        if path.startswith(_CLOSED) or (sends and not is_upload and not path.startswith(_SENT)):
            raise Refused(404, "there is no such page: open the page itself")
        if sends and not is_upload:
            check_body(body, self._folder)
        if heartbeat:
            await self._keep_alive(heartbeat["session"], scope, receive, answer)
        else:
            await self._app(scope, receive, answer)

    async def _keep_alive(
        self, session: str, scope: Message, receive: Receive, answer: _Answer
    ) -> None:
        """Answers a page's sign of life; gradio hears only of the end of a session that it knows.

        At the end of each, gradio spends a tenth of a second.
        """
        with self._present(session):
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await answer({"type": "http.response.start", "status": 200, "headers": headers})
            await receive()  # the request, which has no body
            waits = [receive(), scope["app"].stop_event.wait()]
            ends = {asyncio.ensure_future(wait) for wait in waits}
            done: set[Any] = set()
            try:
                while not done:
                    part = {"type": "http.response.body", "body": b"data: ALIVE\n\n"}
                    await answer({**part, "more_body": True})
                    done, _ = await asyncio.wait(
                        ends, timeout=_BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
            finally:
                for end in ends:
                    end.cancel()
        if self._left(session):
            begun = asyncio.Event()

            async def gone() -> Message:
                await begun.wait()
                return {"type": "http.disconnect"}

            async def unheard(message: Message) -> None:
                if message.get("body"):
                    begun.set()

            await self._app(scope, gone, unheard)


class _Answer:
    """Sends an answer with the page's headers, or one line in place of gradio's errors."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = self._refused = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            if status >= 400 and status != 503:  # which says that the queue is full
                await self.refuse(status if status < 500 else 400, _UNREADABLE)
            self._begun = True
            message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
        if not self._refused:
            await self._send(message)

    async def refuse(self, status: int, detail: str) -> None:
        """Answers with one line, unless an answer has begun already."""
        if self._begun or self._refused:
            return
        self._refused = True
        body = json.dumps({"detail": detail}).encode()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *_HEADERS]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def check_body(body: bytes, folder: str) -> None:
    """Refuses a body that is no JSON object, or names files that were not uploaded to a folder.

    gradio accepts any path or web address as a file, and would fetch an address from the server's
    network.
    """
    try:
        content = json.loads(body)
        files = list(_files_in(content))
    except (ValueError, RecursionError):
        raise Refused(400, _UNREADABLE) from None
    if not isinstance(content, dict):
        raise Refused(400, _UNREADABLE)
    for path in files:
        start = folder.rstrip("/")
        if not (
            isinstance(path, str)
            and path.startswith(start)
            and _UPLOADED.fullmatch(path.removeprefix(start))
        ):
            raise Refused(400, "this file was not uploaded here: upload it first")


def _files_in(value: Any) -> Iterator[Any]:
    """Yields the path of everything that gradio reads as a file."""
    if isinstance(value, list):
        for part in value:
            yield from _files_in(part)
    elif isinstance(value, dict):
        meta = value.get("meta")
        if "path" in value or "url" in value or (isinstance(meta, dict) and "_type" in meta):
            yield value.get("path")
        else:
            yield from _files_in(list(value.values()))
