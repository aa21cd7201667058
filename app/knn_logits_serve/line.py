"""The queue before the model: some requests run, some wait, and further ones are refused.

Each runs in a thread of its own, and passes what it writes to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from knn_logits import KNNLogitsError
from knn_logits.hosting import Deadline
from knn_logits_serve.answers import AnswerPart
from knn_logits_serve.refusals import Refusal, refusal_of
from knn_logits_serve.request import GenerationRequest

logger = logging.getLogger("knn_logits.serve")
_ENDING_REASON = "the server is shutting down: try again later"
_RETRY_SECONDS = 10


def log_failure(error: Exception) -> None:
    """Logs an error in one line."""
    line = " ".join(str(error).split())
    logger.error("a request failed: %s: %s", type(error).__name__, line[:300])


class Job:
    """A request that waits or runs.

    Attributes:
        news: The parts of the answer. The last is None, or a refusal if the request failed.
        deadline: Is set while the request runs.
    """

    future: Future[None]

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.news: asyncio.Queue[AnswerPart | Refusal | None] = asyncio.Queue()
        self.deadline: Deadline | None = None
        self.cancelled = False
        self._loop = asyncio.get_running_loop()

    def tell(self, part: AnswerPart | Refusal | None) -> None:
        """Adds a part of the answer, from any thread."""
        self._loop.call_soon_threadsafe(self.news.put_nowait, part)

    def leave(self) -> None:
        """Ends the request, which nobody reads any more: in the queue, or while it runs."""
        self.cancelled = True
        if self.future.cancel():
            self.news.put_nowait(None)
        if self.deadline is not None:
            self.deadline.cancel()


# Writes the answer of a job, in a thread.
Work: TypeAlias = Callable[[Job, Deadline], None]


class Line:
    """Runs requests in their order."""

    def __init__(self, at_once: int, waiting: int, seconds: float) -> None:
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="write")
        self._most, self._seconds = at_once + waiting, seconds
        self.jobs: list[Job] = []
        self._closed = False

    @property
    def running(self) -> int:
        return sum(job.future.running() for job in self.jobs)

    @property
    def waiting(self) -> int:
        return len(self.jobs) - self.running

    def join(self, request: GenerationRequest, work: Work) -> Job:
        """Puts a request at the end of the queue."""
        if self._closed:
            raise Refusal(_ENDING_REASON, 503, retry_after=_RETRY_SECONDS)
        if len(self.jobs) >= self._most:
            raise Refusal(
                f"{self.waiting} requests are waiting already: try again in a few seconds",
                503,
                code="queue_full",
                retry_after=_RETRY_SECONDS,
            )
        job, loop = Job(request), asyncio.get_running_loop()
        job.future = self._threads.submit(self._run, job, work)
        self.jobs.append(job)
        job.future.add_done_callback(lambda _: loop.call_soon_threadsafe(self.jobs.remove, job))
        return job

    async def close(self, patience: float) -> None:
        """Refuses the requests that wait, and gives those that run some seconds to end."""
        self._closed = True
        for job in self.jobs:
            if job.future.cancel():
                job.tell(Refusal(_ENDING_REASON, 503, retry_after=_RETRY_SECONDS))
        running = [asyncio.wrap_future(job.future) for job in self.jobs if job.future.running()]
        if running:
            await asyncio.wait(running, timeout=patience)
        for job in self.jobs:
            job.leave()
        if running:
            await asyncio.wait(running)
        self._threads.shutdown(wait=False)

    def _run(self, job: Job, work: Work) -> None:
        ended = None
        deadline = job.deadline = Deadline(self._seconds)
        try:
            if not job.cancelled:
                work(job, deadline)
        except Exception as error:
            if not isinstance(error, KNNLogitsError) and not job.cancelled:
                log_failure(error)
            ended = refusal_of(error)
        job.tell(ended)
