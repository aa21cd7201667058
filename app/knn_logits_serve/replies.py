"""Sends the parts of an answer to the client. A client that disconnects ends its job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from knn_logits_serve.answers import Answer
from knn_logits_serve.line import Job, Line
from knn_logits_serve.parts import End, Piece
from knn_logits_serve.refusals import Refusal

AnswerPart: TypeAlias = "Piece | End"
# Turns a part of an answer into the events of a stream.
Speak: TypeAlias = Callable[[AnswerPart], Iterable[dict[str, Any]]]


class Gone(Exception):
    """The client has disconnected."""


class Listening:
    """Reads the parts of an answer from a job, as long as the client is connected."""

    def __init__(self, line: Line, job: Job[AnswerPart], receive: Receive) -> None:
        self._line, self._job = line, job
        self._gone = asyncio.create_task(_departure(receive))

    async def next(self) -> AnswerPart | None:
        """Returns the next part of the answer, or None after the last."""
        coming = asyncio.create_task(self._job.news.get())
        try:
            await asyncio.wait({coming, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            coming.cancel()
            raise
        if not coming.done():
            coming.cancel()
            raise Gone
        part = coming.result()
        if isinstance(part, Refusal):
            raise part
        return part

    def close(self) -> None:
        """Ends the job if it has not ended yet."""
        self._gone.cancel()
        self._line.leave(self._job)


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def whole(listening: Listening, answer: Answer) -> Response:
    """Returns the whole answer once it is finished."""
    try:
        while (part := await listening.next()) is not None:
            answer.note(part)
        return Response(dumped(answer.whole()), media_type="application/json")
    except Gone:
        return Response(status_code=499)
    finally:
        listening.close()


class Stream(Response):
    """Sends an answer as server-sent events while it is written."""

    def __init__(
        self,
        first: AnswerPart | None,
        listening: Listening,
        answer: Answer,
        speak: Speak | None = None,
    ) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._first, self._listening, self._answer = first, listening, answer
        self._speak = speak or answer.chunks

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Sends events until the answer ends or the client disconnects."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            part = self._first
            try:
                while part is not None:
                    for chunk in self._speak(part):
                        await _event(send, dumped(chunk))
                    part = await self._listening.next()
                last = self._answer.last()
                if last is not None:
                    await _event(send, dumped(last))
            except Refusal as refusal:
                await _event(send, dumped(refusal.content))
            await _event(send, b"[DONE]")
            await send({"type": "http.response.body", "body": b""})
        except (Gone, OSError):
            pass
        finally:
            self._listening.close()


async def _event(send: Send, data: bytes) -> None:
    body = b"data: " + data + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


def dumped(content: Any) -> bytes:
    """Encodes a value as JSON, in one line."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
