"""Defines the addresses that the server answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from knn_logits_serve import answers
from knn_logits_serve.answers import Answer
from knn_logits_serve.bodies import chat_of, completion_of, content_of
from knn_logits_serve.line import Job, Line
from knn_logits_serve.open_webui import (
    Speech,
    task_answer,
    task_of,
    without_memory,
    without_numbers,
)
from knn_logits_serve.refusals import Refusal
from knn_logits_serve.replies import AnswerPart, Listening, Stream, whole
from knn_logits_serve.request import GenerationRequest
from knn_logits_serve.served import Served
from knn_logits_serve.together import kind_of, least_of, run

# Turns a body into a request, or directly into its answer.
Parse = Callable[[bytes], "GenerationRequest | Response"]


# The addresses for Open WebUI begin with this.
OPEN_WEBUI = "/open-webui"


class Routes:
    """The handlers of the addresses."""

    def __init__(self, served: Served, line: Line) -> None:
        self.served, self.line = served, line
        self.created = int(time.time())

    def completion(self, body: bytes) -> GenerationRequest:
        """Checks the body of a completion."""
        return self.served.completion(completion_of(content_of(body)))

    def conversation(self, body: bytes) -> GenerationRequest:
        """Checks the body of a chat."""
        return self.served.conversation(chat_of(content_of(body)))

    def open_webui(self, body: bytes) -> GenerationRequest | Response:
        """Checks the body of a chat of Open WebUI.

        Open WebUI also makes requests of its own, such as for a title. If the model has no chat
        template, they are answered without it.
        """
        chat = without_numbers(chat_of(content_of(body)))
        task = task_of(chat)
        generation = self.served.conversation(chat) if task is None or not self.plain else None
        if task is None and generation is not None:
            return replace(generation, drawn=generation.stream)
        if generation is not None:
            return without_memory(generation)
        return JSONResponse(answers.message_json(chat.model, task_answer(task or "")))

    @property
    def plain(self) -> bool:
        """Whether the model has no chat template, and so was not trained to follow a chat."""
        return self.served.chat.plain

    async def models(self) -> dict[str, Any]:
        """Lists the model alone, with each of its datastores, and with all of them."""
        return answers.models_json(self.served.names, self.created)

    async def model(self, name: str) -> dict[str, Any]:
        """Describes one model."""
        names = self.served.names
        if name not in names:
            raise Refusal(
                f"this server has no model {name[:80]!r}: ask for {', '.join(names)}",
                404,
                code="model_not_found",
            )
        return answers.model_json(name, names[name], self.created)

    async def completions(self, request: Request) -> Response:
        """Continues a text."""
        return await self.answer(request, self.completion)

    async def chat(self, request: Request) -> Response:
        """Answers a chat."""
        return await self.answer(request, self.conversation)

    async def chat_of_open_webui(self, request: Request) -> Response:
        """Answers a chat of Open WebUI."""
        return await self.answer(request, self.open_webui, Speech)

    async def answer(self, request: Request, parse: Parse, dialect: Any = None) -> Response:
        """Answers a request."""
        body = await request.body()
        # Tokenizing a long text takes time, so it must not block the event loop.
        generation = await asyncio.to_thread(parse, body)
        if isinstance(generation, Response):
            return generation
        job: Job[AnswerPart] = self.line.join(
            generation,
            partial(run, self.served),
            alike=kind_of(self.served, generation),
            least=least_of(generation),
        )
        listening = Listening(self.line, job, request.receive)
        answer = Answer(generation)
        if not generation.stream:
            return await whole(listening, answer)
        try:
            first = await listening.next()
        except BaseException as error:
            listening.close()
            if isinstance(error, Refusal):
                raise
            return Response(status_code=499)
        speak = dialect(self.served, generation, answer) if dialect is not None else None
        return Stream(first, listening, answer, speak)


def build_app(served: Served, line: Line) -> FastAPI:
    """Builds the web application, without its guard."""
    app = FastAPI(title="knn-logits", docs_url=None, redoc_url=None, openapi_url=None)
    routes = Routes(served, line)

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> Response:
        return JSONResponse(refusal.content, refusal.status, headers=refusal.headers)

    @app.exception_handler(HTTPException)
    async def lost(request: Request, error: HTTPException) -> Response:
        address = f"{request.method} {request.url.path[:80]}"
        line = f"this server does not answer {address}: check the path and the method"
        refusal = Refusal(line, error.status_code)
        return JSONResponse(refusal.content, error.status_code, headers=error.headers)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "running": line.running, "waiting": line.waiting}

    for prefix in ("", OPEN_WEBUI):
        app.get(f"{prefix}/v1/models")(routes.models)
        app.get(f"{prefix}/v1/models/{{name:path}}")(routes.model)
        app.post(f"{prefix}/v1/completions")(routes.completions)
    app.post("/v1/chat/completions")(routes.chat)
    app.post(f"{OPEN_WEBUI}/v1/chat/completions")(routes.chat_of_open_webui)
    return app
