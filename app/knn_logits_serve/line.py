"""The requests that wait for the model. They run one after another, in a thread.

What a request writes is passed to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from knn_logits import KNNLogitsError
from knn_logits.hosting import Deadline
from knn_logits_serve.answers import AnswerPart
from knn_logits_serve.bodies import GenerationRequest
from knn_logits_serve.refusals import Refusal, refusal_of

logger = logging.getLogger("knn_logits.serve")
_ENDING_REASON = "the server is shutting down: try again later"
# The seconds that the running request gets when the server ends.
_PATIENCE = 10.0


def log_failure(error: Exception) -> None:
    """Logs an error in one line."""
    line = " ".join(str(error).split())
    logger.error("a request failed: %s: %s", type(error).__name__, line[:300])


class Job:
    """A request that waits or runs.

    Attributes:
        news: The parts of the answer. The last is None, or a refusal if the request failed.
        deadline: Is cancelled when nobody reads the answer any more.
    """

    future: Future[None]

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.news: asyncio.Queue[AnswerPart | Refusal | None] = asyncio.Queue()
        self.deadline = Deadline()
        self._loop = asyncio.get_running_loop()

    def tell(self, part: AnswerPart | Refusal | None) -> None:
        """Adds a part of the answer, from any thread."""
        self._loop.call_soon_threadsafe(self.news.put_nowait, part)

    def leave(self) -> None:
        """Ends the request, which nobody reads any more, while it waits or runs."""
        self.deadline.cancel()
        if self.future.cancel():
            self.news.put_nowait(None)


class Line:
    """Runs requests in their order; `jobs` are those that run or wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="write")
        self.jobs: list[Job] = []
        self._closed = False

    def join(self, request: GenerationRequest, work: Callable[[Job], None]) -> Job:
        """Puts a request at the end of the queue, whose answer `work` writes in a thread."""
        if self._closed:
            raise Refusal(_ENDING_REASON, 503)
        job, loop = Job(request), asyncio.get_running_loop()
        self.jobs.append(job)
        job.future = self._thread.submit(_run, job, work)
        job.future.add_done_callback(lambda _: loop.call_soon_threadsafe(self.jobs.remove, job))
        return job

    async def close(self) -> None:
        """Refuses the requests that wait, and gives the running one some seconds to end."""
        self._closed = True
        for job in self.jobs:
            if job.future.cancel():
                job.tell(Refusal(_ENDING_REASON, 503))
        running = [asyncio.wrap_future(job.future) for job in self.jobs if job.future.running()]
        if running:
            await asyncio.wait(running, timeout=_PATIENCE)
            for job in self.jobs:
                job.leave()
            await asyncio.wait(running)
        self._thread.shutdown(wait=False)


def _run(job: Job, work: Callable[[Job], None]) -> None:
    ended = None
    try:
        if not job.deadline.cancelled:
            work(job)
    except Exception as error:
        if not isinstance(error, KNNLogitsError) and not job.deadline.cancelled:
            log_failure(error)
        ended = refusal_of(error)
    job.tell(ended)
