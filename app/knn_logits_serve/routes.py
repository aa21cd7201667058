"""The addresses that the server answers, and how an answer is sent, whole or as a stream.

Requests run one after another, in a thread. What a request writes is passed to the event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive

from knn_logits_serve.answers import Answer, AnswerPart, message_json
from knn_logits_serve.bodies import ChatBody, CompletionBody, Refusal, TraceBody, body_of
from knn_logits_serve.open_webui import OpenWebUIAnswer, task_answer
from knn_logits_serve.served import Served
from knn_logits_serve.writing import Job, run

# Turns a body into the answer to fill, or one that is complete.
Parse: TypeAlias = Callable[[bytes], Answer | Response]
_ENDPOINTS = "POST /v1/chat/completions, /v1/completions and /v1/trace, GET /v1/models and /health"
# The addresses for Open WebUI begin with this.
OPEN_WEBUI = "/open-webui"


async def _parts(job: Job, receive: Receive) -> AsyncGenerator[AnswerPart, None]:
    """Yields the parts of an answer. The job ends when the client or the reader goes away."""
    gone = asyncio.create_task(_departure(receive))
    gone.add_done_callback(lambda _: job.leave())
    try:
        while (part := await job.news.get()) is not None:
            if isinstance(part, Refusal):
                raise part
            yield part
    finally:
        gone.cancel()


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _events(
    parts: AsyncGenerator[AnswerPart, None], first: AnswerPart | None, reply: Answer
) -> AsyncGenerator[bytes, None]:
    """Yields the server-sent events of an answer while it is written."""
    part = first
    async with aclosing(parts):
        try:
            while part is not None:
                for chunk in reply.chunks(part):
                    yield _event(chunk)
                part = await anext(parts, None)
            if (last := reply.last()) is not None:
                yield _event(last)
        except Refusal as refusal:
            yield _event(refusal.content)
        yield b"data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + _dumped(content) + b"\n\n"


def _dumped(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


class Routes:
    """The handlers of the addresses."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="write")
        self.created = int(time.time())

    def completion(self, body: bytes) -> Answer:
        return Answer(self.served.completion(body_of(CompletionBody, body)))

    def conversation(self, body: bytes) -> Answer:
        return Answer(self.served.conversation(body_of(ChatBody, body)))

    def open_webui(self, body: bytes) -> Answer | Response:
        """Checks a chat of Open WebUI, and answers its own requests."""
        chat = body_of(ChatBody, body)
        answered = task_answer(chat)
        if answered is not None:
            return JSONResponse(message_json(chat.model, answered))
        generation = self.served.conversation(chat)
        return OpenWebUIAnswer(replace(generation, drawn=bool(generation.body.stream)))

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(self, _: Request) -> Response:
        """Lists the model alone, with each of its datastores, and with all of them."""
        return JSONResponse({"object": "list", "data": list(map(self._about, self.served.names))})

    async def model(self, request: Request) -> Response:
        return JSONResponse(self._about(request.path_params["name"]))

    def _about(self, name: str) -> dict[str, Any]:
        """Describes a model and the datastores that vote under its name."""
        stores = list(self.served.stores_of(name))
        about = {"created": self.created, "owned_by": "knn-logits", "datastores": stores}
        return {"id": name, "object": "model", **about}

    async def trace(self, request: Request) -> Response:
        body = await request.body()
        found = await asyncio.to_thread(lambda: self.served.trace(body_of(TraceBody, body)))
        return Response(_dumped(found), media_type="application/json")

    async def answer(self, parse: Parse, request: Request) -> Response:
        body = await request.body()
        # Tokenizing a long text takes time, so it must not block the event loop.
        reply = await asyncio.to_thread(parse, body)
        if isinstance(reply, Response):
            return reply
        job = Job(reply.request)
        job.future = self._thread.submit(run, self.served, job)
        parts = _parts(job, request.receive)
        first = await anext(parts, None)  # a refusal before it gets its own status
        if reply.request.body.stream:
            return StreamingResponse(_events(parts, first, reply), media_type="text/event-stream")
        while first is not None:
            reply.note(first)
            first = await anext(parts, None)
        return Response(_dumped(reply.whole()), media_type="application/json")


async def _refused(_: Request, refusal: Any) -> Response:
    return JSONResponse(refusal.content, refusal.status, headers=refusal.headers)


async def _lost(request: Request, error: Any) -> Response:
    address = f"{request.method} {request.url.path[:80]}"
    line = f"this server does not answer {address}: it has {_ENDPOINTS}"
    refusal = Refusal(line, error.status_code)
    return JSONResponse(refusal.content, error.status_code, headers=error.headers)


def build_app(served: Served) -> Starlette:
    """Builds the web application, without its guard."""
    handlers = Routes(served)
    routes = [Route("/health", handlers.health)]
    routes.append(Route("/v1/trace", handlers.trace, methods=["POST"]))
    for prefix, chat in (("", handlers.conversation), (OPEN_WEBUI, handlers.open_webui)):
        routes.append(Route(f"{prefix}/v1/models", handlers.models))
        routes.append(Route(f"{prefix}/v1/models/{{name:path}}", handlers.model))
        written: dict[str, Parse] = {"completions": handlers.completion, "chat/completions": chat}
        for path, parse in written.items():
            answer = partial(handlers.answer, parse)
            routes.append(Route(f"{prefix}/v1/{path}", answer, methods=["POST"]))
    return Starlette(routes=routes, exception_handlers={Refusal: _refused, HTTPException: _lost})
