"""The addresses that the server answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from knn_logits_serve import answers
from knn_logits_serve.answers import Answer
from knn_logits_serve.asked import Asked
from knn_logits_serve.bodies import chat_of, completion_of, content_of
from knn_logits_serve.line import Line
from knn_logits_serve.refusals import Refusal
from knn_logits_serve.replies import Listening, Stream, whole
from knn_logits_serve.served import Served
from knn_logits_serve.writing import write

Parse = Callable[[bytes], Asked]


class Routes:
    """What is answered where.

    Args:
        served: The model.
        line: Runs requests.
    """

    def __init__(self, served: Served, line: Line) -> None:
        self.served, self.line = served, line
        self.created = int(time.time())

    def completion(self, body: bytes) -> Asked:
        """A completion's body, checked."""
        return self.served.completion(completion_of(content_of(body)))

    def conversation(self, body: bytes) -> Asked:
        """A chat's body, checked."""
        return self.served.conversation(chat_of(content_of(body)))

    async def answer(self, request: Request, parse: Parse, dialect: Any = None) -> Response:
        """Answers a request.

        Args:
            request: The request.
            parse: From its body to what it asks for.
            dialect: Makes what a stream says of an answer; None speaks OpenAI's plain language.
        """
        body = await request.body()
        # Long texts are cut into tokens here: others are answered meanwhile.
        asked = await asyncio.to_thread(parse, body)
        job = self.line.join(partial(write, self.served, asked))
        listening = Listening(self.line, job, request.receive)
        answer = Answer(asked)
        if not asked.stream:
            return await whole(listening, answer)
        try:
            first = await listening.next()
        except BaseException as error:
            listening.close()
            if isinstance(error, Refusal):
                raise
            return Response(status_code=499)
        speak = dialect(self.served, asked, answer) if dialect is not None else None
        return Stream(first, listening, answer, speak)


def build_app(served: Served, line: Line) -> FastAPI:
    """The web application, without the guard that stands before it.

    Args:
        served: The model with its datastores.
        line: Runs requests.
    """
    app = FastAPI(title="knn-logits", docs_url=None, redoc_url=None, openapi_url=None)
    routes = Routes(served, line)

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> Response:
        return JSONResponse(refusal.content, refusal.status, headers=refusal.headers)

    @app.exception_handler(HTTPException)
    async def lost(request: Request, error: HTTPException) -> Response:
        told = f"{request.method} {request.url.path[:80]} is answered here by nothing"
        refusal = Refusal(told, error.status_code)
        return JSONResponse(refusal.content, error.status_code, headers=error.headers)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "running": line.running, "waiting": line.waiting}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return answers.models_json(served.names, routes.created)

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name not in served.names:
            raise Refusal(f"there is no model {name[:80]!r} here", 404, code="model_not_found")
        return answers.model_json(name, served.names[name], routes.created)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await routes.answer(request, routes.completion)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await routes.answer(request, routes.conversation)

    return app
