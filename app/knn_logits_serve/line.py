"""The line before the model: so many requests run, so many wait, the others are told to come back.

Each request runs in a thread of its own, and tells the event loop what it writes.
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
# What one request takes, where none was answered yet.
_FIRST_GUESS = 5.0


class Job(Generic[News]):
    """A request in the line, or running.

    Attributes:
        news: What it tells; None at its end, a refusal where it failed.
    """

    def __init__(self) -> None:
        self.news: asyncio.Queue[News | Refusal | None] = asyncio.Queue()
        self.deadline: Deadline | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Ends it: nobody listens any more."""
        self.cancelled = True
        if self.deadline is not None:
            self.deadline.cancel()


class Line:
    """Runs requests, in the order in which they come.

    Args:
        at_once: Requests that run at a time.
        waiting: Requests that may wait; the next one is refused.
        seconds: Time that one request may run.
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
        """How many requests wait."""
        return len(self._jobs) - self.running

    def join(self, work: Work[News]) -> Job[News]:
        """Puts a request at the end of the line.

        Args:
            work: Called in a thread with what takes its news, and with when it has to end.

        Raises:
            Refusal: when the line is full, or closed.
        """
        if self._closed:
            raise Refusal("the server is ending", 503, retry_after=10)
        if self.waiting >= self._most_waiting and self.running >= self._at_once:
            seconds = math.ceil(self._usual * (self.waiting + 1) / self._at_once)
            raise Refusal(
                f"{self.waiting} requests wait already; try again in {seconds} seconds",
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
        """Takes a request out of the line, or ends its run."""
        job.cancel()
        for task, one in self._jobs.items():
            if one is job and job.deadline is None:
                task.cancel()

    async def close(self, patience: float) -> None:
        """Refuses those who wait, and gives those who run so many seconds to end."""
        self._closed = True
        for task, job in list(self._jobs.items()):
            if job.deadline is None:
                job.news.put_nowait(Refusal("the server is ending", 503, retry_after=10))
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
