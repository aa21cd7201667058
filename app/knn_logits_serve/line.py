"""The queue before the model: some requests run, some wait, and further ones are refused.

Each request runs in a thread of its own, and passes what it writes to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeAlias, TypeVar

from knn_logits import Deadline, KNNLogitsError
from knn_logits_serve.refusals import Refusal, refusal_of

News = TypeVar("News")
Work: TypeAlias = "Callable[[Callable[[News], None], Deadline], None]"

logger = logging.getLogger("knn_logits.serve")
# The seconds that a request is expected to take before any was answered.
_FIRST_GUESS = 5.0


class Job(Generic[News]):
    """A request that waits or runs.

    Attributes:
        news: The parts of the answer. The last item is None, or a refusal if the request failed.
        deadline: The deadline of the request, once it runs.
        cancelled: Whether the request was cancelled.
    """

    def __init__(self) -> None:
        self.news: asyncio.Queue[News | Refusal | None] = asyncio.Queue()
        self.deadline: Deadline | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Ends the request, since nobody reads its answer any more."""
        self.cancelled = True
        if self.deadline is not None:
            self.deadline.cancel()


class Line:
    """Runs requests in the order in which they come.

    Args:
        at_once: The most requests that run at the same time.
        waiting: The most requests that wait. Further ones are refused.
        seconds: The seconds that one request may run.
    """

    def __init__(self, at_once: int, waiting: int, seconds: float) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="write")
        self._at_once, self._most_waiting, self._seconds = at_once, waiting, seconds
        self._jobs: dict[asyncio.Task[None], Job[object]] = {}
        self._usual = _FIRST_GUESS
        self._closed = False
        self.running = 0

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._jobs) - self.running

    def join(self, work: Work[News]) -> Job[News]:
        """Puts a request at the end of the queue.

        Args:
            work: Runs the request in a thread. It is called with a function that takes parts of
                the answer, and with the deadline.

        Raises:
            Refusal: when the queue is full or closed.
        """
        if self._closed:
            raise Refusal("the server is shutting down: try again later", 503, retry_after=10)
        if self.waiting >= self._most_waiting and self.running >= self._at_once:
            seconds = math.ceil(self._usual * (self.waiting + 1) / self._at_once)
            raise Refusal(
                f"{self.waiting} requests are waiting already: try again in {seconds} seconds",
                503,
                code="queue_full",
                retry_after=seconds,
            )
        job: Job[News] = Job()
        task = asyncio.create_task(self._take_turn(job, work))
        self._jobs[task] = job  # type: ignore[assignment]
        task.add_done_callback(self._leave)
        return job

    def leave(self, job: Job[News]) -> None:
        """Removes a request from the queue, or ends it if it runs."""
        job.cancel()
        for task, one in self._jobs.items():
            if one is job and job.deadline is None:
                task.cancel()

    async def close(self, patience: float) -> None:
        """Refuses the requests that wait, and gives those that run some seconds to end."""
        self._closed = True
        for task, job in list(self._jobs.items()):
            if job.deadline is None:
                line = "the server is shutting down: try again later"
                job.news.put_nowait(Refusal(line, 503, retry_after=10))
                task.cancel()
        if self._jobs:
            await asyncio.wait(list(self._jobs), timeout=patience)
        for job in self._jobs.values():
            job.cancel()
        if self._jobs:
            await asyncio.wait(list(self._jobs))
        self._threads.shutdown(wait=False)

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._jobs.pop(task, None)

    async def _take_turn(self, job: Job[News], work: Work[News]) -> None:
        async with self._places:
            if job.cancelled:
                return
            job.deadline = Deadline(self._seconds)
            self.running += 1
            began = time.monotonic()
            loop = asyncio.get_running_loop()

            def tell(one: News) -> None:
                loop.call_soon_threadsafe(job.news.put_nowait, one)

            try:
                await loop.run_in_executor(self._threads, work, tell, job.deadline)
                job.news.put_nowait(None)
            except Exception as error:
                if not isinstance(error, KNNLogitsError) and not job.cancelled:
                    line = " ".join(str(error).split())
                    logger.error("a request failed: %s: %s", type(error).__name__, line[:300])
                job.news.put_nowait(refusal_of(error))
            finally:
                self.running -= 1
                self._usual += 0.2 * (time.monotonic() - began - self._usual)
