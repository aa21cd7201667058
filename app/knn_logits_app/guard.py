"""Checks every request before gradio sees it, and makes each answer safe for the page.

gradio would answer some requests with a traceback, a hang or a file of the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from ipaddress import ip_address, ip_network
from typing import Any

from pydantic import BaseModel, Field, StrictInt, ValidationError

from knn_logits_app.door import Message, Receive, Send, again, header, read_body
from knn_logits_app.visitors import Quotas

JSON_BYTES = 600_000
# The bytes that a browser writes around uploaded files.
FORM_BYTES = 40_000
# The time after which gradio deletes uploads.
UPLOADED_SECONDS = 1800.0
_MOST_VALUES, _DEEPEST = 32, 8
_BEAT_SECONDS = 15.0
_API = "/gradio_api"
_HEARTBEAT = re.compile(rf"{_API}/heartbeat/(?P<session>[^/]+)")
# The page does not use these routes of gradio, such as those that call events by names.
_CLOSED = (
    "/monitoring",
    *(
        f"{_API}/{route}"
        for route in (
            "call/", "mcp", "run/", "api/", "proxy=", "file", "stream/", "custom_component/",
            "component_server", "process_recording", "deep_link", "vibe-", "undo-vibe-edit",
            "run-history", "runs", "profiling", "dev/",
        )
    ),
)  # fmt: skip
_QUEUE = f"{_API}/queue/join"
_CHECKED = (_QUEUE, f"{_API}/cancel", f"{_API}/reset")
_UNREADABLE = "the server cannot read this request: reload the page"
_NOT_UPLOADED = "this file was not uploaded here: upload it first"
_TOO_DEEP = "the request is nested too deeply: send flat JSON"
_HANDLE = re.compile(r"[0-9a-f]{16,128}/(?!\.{1,2}$)[^/\\\x00]{1,255}")
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
        quotas: Quotas,
        waiting: Callable[[str], int],
        present: Callable[[str], AbstractContextManager[None]],
        left: Callable[[str], bool],
    ) -> None:
        self._app = app
        self._upload_bytes, self._folder = upload_bytes, uploads
        self._quotas, self._waiting = quotas, waiting
        self._present, self._left = present, left
        self._uploads: deque[tuple[float, str, int]] = deque()
        self._joining: Counter[str] = Counter()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            address = address_of(scope)
            scope["client"], scope["arrived"] = (address, 0), time.monotonic()
            await self._pass_on(scope, receive, answer, address)
        except Refused as refused:
            await answer.refuse(refused.status, str(refused))
        except Exception:
            # gradio failed on the request. Its traceback must not reach the visitor.
            await answer.refuse(400, _UNREADABLE)

    async def _pass_on(
        self, scope: Message, receive: Receive, answer: _Answer, address: str
    ) -> None:
        path = str(scope["path"])
        if path.startswith(_CLOSED):
            raise Refused(404, "there is no such page: open the page itself")
        heartbeat = _HEARTBEAT.fullmatch(path)
        if heartbeat:
            await self._keep_alive(heartbeat["session"], scope, receive, answer)
        elif scope["method"] not in ("POST", "PUT", "PATCH", "DELETE"):
            await self._app(scope, receive, answer)
        elif path.rstrip("/").endswith("/upload"):
            body = await read_body(scope, receive, self._upload_bytes + FORM_BYTES, Refused)
            self._count_upload(len(body), address)
            answer.change = lambda body: _with_handles(body, self._folder)
            await self._app(scope, again(body, receive), answer)
        else:
            body = await read_body(scope, receive, JSON_BYTES, Refused)
            if path.startswith(_CHECKED):
                check_body(body)
            body = _with_paths(body, self._folder)
            headers = [pair for pair in scope["headers"] if pair[0] != b"content-length"]
            scope["headers"] = [*headers, (b"content-length", str(len(body)).encode())]
            queued = path.startswith(_QUEUE)
            # `waiting` does not count requests that are just about to enter the queue.
            if queued and self._waiting(address) + self._joining[address] >= self._quotas.waiting:
                line = "too many requests from your address are waiting: try again later"
                raise Refused(503, line)
            self._joining[address] += queued
            try:
                await self._app(scope, again(body, receive), answer)
            finally:
                self._joining[address] -= queued
                self._joining += Counter()

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

    def _count_upload(self, size: int, address: str) -> None:
        now = time.monotonic()
        while self._uploads and now - self._uploads[0][0] > UPLOADED_SECONDS:
            self._uploads.popleft()
        total = size + sum(bytes_ for _, _, bytes_ in self._uploads)
        mine = size + sum(bytes_ for _, who, bytes_ in self._uploads if who == address)
        if mine > self._quotas.uploaded or total > self._quotas.uploaded_by_all:
            raise Refused(503, "too much was uploaded recently: try again in half an hour")
        self._uploads.append((now, address, size))


class _Answer:
    """Sends an answer with the page's headers, or one line in place of a server's error."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = self._refused = False
        # If set, this changes the whole body before it is sent.
        self.change: Callable[[bytes], bytes] | None = None
        self._start: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if self._refused:
            return
        if message["type"] == "http.response.start":
            status = message["status"]
            if status >= 500 and status != 503:
                await self.refuse(400, _UNREADABLE)
                return
            self._begun = True
            message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
            if status >= 400:
                self.change = _one_line
            if self.change is not None and status != 204:
                self._start = message
                return
        elif self._start is not None and self.change is not None:
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            body = self.change(bytes(self._body))
            headers = [pair for pair in self._start["headers"] if pair[0] != b"content-length"]
            headers.append((b"content-length", str(len(body)).encode()))
            await self._send({**self._start, "headers": headers})
            message = {**message, "body": body}
        await self._send(message)

    async def refuse(self, status: int, detail: str) -> None:
        """Answers with one line, unless an answer has begun already."""
        begun = self._begun or self._refused
        self._refused = True
        if begun:
            return
        body = json.dumps({"detail": detail}).encode()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *_HEADERS]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _one_line(body: bytes) -> bytes:
    """Makes the detail of a refusal one line, without the `repr` of Python objects."""
    try:
        content = json.loads(body)
    except ValueError:
        return body
    detail = content.get("detail") if isinstance(content, dict) else None
    if not isinstance(detail, str):
        return body
    line = " ".join(detail.split())
    if " at 0x" in line or "<gradio" in line:
        line = _UNREADABLE
    return json.dumps({**content, "detail": line}).encode()


class _Call(BaseModel):
    session_hash: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    fn_index: StrictInt | None = None
    trigger_id: StrictInt | None = None
    data: list[Any] | None = Field(None, max_length=_MOST_VALUES)


def check_body(body: bytes) -> None:
    """Refuses a request for the queue that the page would not send."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the request is not JSON: send a JSON object") from None
    if not isinstance(content, dict):
        raise Refused(400, "the request is JSON, but not an object: send a JSON object")
    if _is_deeper(content, _DEEPEST):
        raise Refused(400, _TOO_DEEP)
    try:
        _Call.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise Refused(400, f"{first['loc'][0]} cannot be read: {first['msg']}") from None


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether a value is nested in more levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in inner)


# gradio answers an upload with the file's whole path. Afterwards it accepts any path or web address
# as a file, and would fetch an address from the server's network. So a page gets only the end of
# the path, its handle, and everything else that it sends as a file is refused.


def _with_handles(answer: bytes, folder: str) -> bytes:
    """Replaces paths by handles in gradio's answer to an upload, a list of paths as JSON."""
    start = folder.replace("\\", "/").rstrip("/") + "/"
    paths = [str(path).replace("\\", "/") for path in json.loads(answer)]
    return json.dumps([path.removeprefix(start) for path in paths]).encode()


def _with_paths(body: bytes, folder: str) -> bytes:
    """Replaces handles of uploaded files in a JSON body by paths. Other bodies stay unchanged."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return body
    try:
        replaced = _paths_in(content, folder)
    except RecursionError:
        raise Refused(400, _TOO_DEEP) from None
    return body if replaced == content else json.dumps(replaced).encode()


def _paths_in(value: Any, folder: str) -> Any:
    if isinstance(value, list):
        return [_paths_in(part, folder) for part in value]
    if not isinstance(value, dict):
        return value
    meta = value.get("meta")
    is_file = "path" in value or "url" in value or (isinstance(meta, dict) and "_type" in meta)
    if not is_file:
        return {key: _paths_in(part, folder) for key, part in value.items()}
    handle = value.get("path")
    if not isinstance(handle, str) or not _HANDLE.fullmatch(handle):
        raise Refused(400, _NOT_UPLOADED)
    # gradio would fetch a web address, so it is dropped.
    return {**value, "path": f"{folder.rstrip('/')}/{handle}", "url": None}


def address_of(scope: Message) -> str:
    """Returns the address of a visitor. Of an IPv6 address it is the /64 network of a household.

    On a Hub Space all requests come through the Hub's servers. The last public address that these
    wrote into `x-forwarded-for` is the visitor's. Elsewhere a client could invent this header, so
    uvicorn trusts it only from this machine and from FORWARDED_ALLOW_IPS.
    """
    client = scope.get("client")
    address = str(client[0]) if client else ""
    if os.environ.get("SPACE_ID"):
        hops = ",".join(header(scope, b"x-forwarded-for")).split(",")
        public = [hop.strip() for hop in hops if _is_public(hop.strip())]
        address = public[-1] if public else address
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return str(ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address


def _is_public(address: str) -> bool:
    try:
        return ip_address(address).is_global
    except ValueError:
        return False
