"""The queue before the model: some requests run, some wait, and further ones are refused.

Each runs in a thread of its own, and passes what it writes to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from knn_logits import KNNLogitsError
from knn_logits.hosting import Deadline
from knn_logits_serve.answers import AnswerPart
from knn_logits_serve.refusals import Refusal, refusal_of
from knn_logits_serve.request import GenerationRequest

logger = logging.getLogger("knn_logits.serve")
# The seconds that a request is expected to take before any was answered.
_FIRST_GUESS = 5.0
_ENDING = "the server is shutting down: try again later"


def log_failure(error: Exception) -> None:
    """Logs an error in one line."""
    line = " ".join(str(error).split())
    logger.error("a request failed: %s: %s", type(error).__name__, line[:300])


@dataclass(frozen=True)
class Turn:
    """A request that runs."""

    request: GenerationRequest
    tell: Callable[[AnswerPart], None]  # takes the parts of its answer, in the thread that runs it
    deadline: Deadline


# Runs a request, in a thread.
Work: TypeAlias = Callable[[Turn], None]


@dataclass(eq=False)
class Job:
    """A request that waits or runs."""

    request: GenerationRequest
    work: Work
    shares: bool
    # The parts of the answer. The last is None, or a refusal if the request failed.
    news: asyncio.Queue[AnswerPart | Refusal | None] = field(default_factory=asyncio.Queue)
    deadline: Deadline | None = None
    cancelled: bool = False

    def cancel(self) -> None:
        """Ends the request, since nobody reads its answer any more."""
        self.cancelled = True
        if self.deadline is not None:
            self.deadline.cancel()


class Line:
    """Runs requests in their order."""

    def __init__(self, at_once: int, waiting: int, seconds: float, together: int = 1) -> None:
        self._threads = ThreadPoolExecutor(at_once + together, thread_name_prefix="write")
        self._at_once, self._most_waiting, self._seconds = at_once, waiting, seconds
        self._together = together
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._usual = _FIRST_GUESS
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def jobs(self) -> list[Job]:
        return [*self._running, *self._waiting]

    def join(self, request: GenerationRequest, work: Work, shares: bool = False) -> Job:
        """Puts a request at the end of the queue; `shares` if it shares passes with others."""
        if self._closed:
            raise Refusal(_ENDING, 503, retry_after=10)
        begins = not self._waiting and self._has_place(shares)
        if self.waiting >= self._most_waiting and not begins:
            seconds = math.ceil(self._usual * (self.waiting + 1) / self._at_once)
            raise Refusal(
                f"{self.waiting} requests are waiting already: try again in {seconds} seconds",
                503,
                code="queue_full",
                retry_after=seconds,
            )
        job = Job(request, work, shares)
        self._waiting.append(job)
        self._begin()
        return job

    def leave(self, job: Job) -> None:
        """Removes a request from the queue, or ends it if it runs."""
        job.cancel()
        if job in self._waiting:
            self._waiting.remove(job)

    async def close(self, patience: float) -> None:
        """Refuses the requests that wait, and gives those that run some seconds to end."""
        self._closed = True
        for job in self._waiting:
            job.news.put_nowait(Refusal(_ENDING, 503, retry_after=10))
        self._waiting.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)
        for job in self.jobs:
            job.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown(wait=False)

    def _begin(self) -> None:
        """Runs the requests for which there is a place."""
        while self._waiting and self._has_place(self._waiting[0].shares):
            job = self._waiting.pop(0)
            self._running.append(job)
            task = asyncio.create_task(self._run(job))
            self._tasks.add(task)
            task.add_done_callback(partial(self._end, job))

    def _has_place(self, shares: bool) -> bool:
        shared = sum(job.shares for job in self._running)
        if shares and shared:
            return shared < self._together
        return self.running - shared + bool(shared) < self._at_once

    def _end(self, job: Job, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._running.remove(job)
        self._begin()

    async def _run(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        job.deadline = Deadline(self._seconds)

        def tell(part: AnswerPart) -> None:
            loop.call_soon_threadsafe(job.news.put_nowait, part)

        turn = Turn(job.request, tell, job.deadline)
        began, ended = time.monotonic(), None
        try:
            await loop.run_in_executor(self._threads, job.work, turn)
        except Exception as error:
            if not isinstance(error, KNNLogitsError) and not job.cancelled:
                log_failure(error)
            ended = refusal_of(error)
        finally:
            job.news.put_nowait(ended)
            self._usual += 0.2 * (time.monotonic() - began - self._usual)
