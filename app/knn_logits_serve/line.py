"""The queue before the model: some requests run, some wait, and further ones are refused.

Requests that are alike run together, once so many wait that this is faster. Each group of requests
runs in a thread of its own, and passes what it writes to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from knn_logits import Deadline, KNNLogitsError
from knn_logits_serve.answers import AnswerPart
from knn_logits_serve.request import GenerationRequest, Refusal, refusal_of

logger = logging.getLogger("knn_logits.serve")
# The seconds that a request is expected to take before any was answered.
_FIRST_GUESS = 5.0
# The seconds that the first of several requests waits for the others, if there were several before.
_GATHERING = 0.05
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
    finish: Callable[[], None]  # tells that it is complete, while others of the group go on


# Runs requests that are alike, in a thread.
Work: TypeAlias = Callable[[Sequence[Turn]], None]


class Job:
    """A request that waits or runs."""

    def __init__(
        self, request: GenerationRequest, work: Work, alike: Hashable | None, least: int
    ) -> None:
        self.request, self.work, self.alike, self.least = request, work, alike, least
        # The parts of the answer. The last is None, or a refusal if the request failed.
        self.news: asyncio.Queue[AnswerPart | Refusal | None] = asyncio.Queue()
        self.deadline: Deadline | None = None
        self.cancelled = False
        self._ended = False

    def cancel(self) -> None:
        """Ends the request, since nobody reads its answer any more."""
        self.cancelled = True
        if self.deadline is not None:
            self.deadline.cancel()

    def end(self, news: Refusal | None) -> None:
        """Tells how the request ended. Only the first time counts."""
        if not self._ended:
            self._ended = True
            self.news.put_nowait(news)


class Line:
    """Runs requests in their order, those that are alike together, past those between them."""

    def __init__(self, at_once: int, waiting: int, seconds: float, together: int = 1) -> None:
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="write")
        self._at_once, self._most_waiting, self._seconds = at_once, waiting, seconds
        self._together = together
        self._waiting: list[Job] = []
        self._groups: dict[asyncio.Task[None], list[Job]] = {}
        self._usual = _FIRST_GUESS
        # The most requests that were here at one time since the latest pause.
        self._crowd = 0
        self._gathering: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """The number of requests that run."""
        return sum(len(group) for group in self._groups.values())

    @property
    def jobs(self) -> list[Job]:
        """The requests that run, and those that wait."""
        return [*(job for group in self._groups.values() for job in group), *self._waiting]

    def join(
        self,
        request: GenerationRequest,
        work: Work,
        *,
        alike: Hashable | None = None,
        least: int = 2,
    ) -> Job:
        """Puts a request at the end of the queue."""
        if self._closed:
            raise Refusal(_ENDING, 503, retry_after=10)
        if self.waiting >= self._most_waiting and len(self._groups) >= self._at_once:
            seconds = math.ceil(self._usual * (self.waiting + 1) / self._at_once)
            raise Refusal(
                f"{self.waiting} requests are waiting already: try again in {seconds} seconds",
                503,
                code="queue_full",
                retry_after=seconds,
            )
        job: Job = Job(request, work, alike, least)
        idle = not self._groups and not self._waiting
        self._waiting.append(job)
        jobs = self.waiting + self.running
        if alike is not None and not self._groups and jobs < min(self._crowd, self._together):
            # There was a crowd before, so the others will be here in a moment.
            if self._gathering is None:
                self._gathering = asyncio.get_running_loop().call_later(_GATHERING, self._open)
        elif idle or self._gathering is not None:
            self._open()
        else:
            self._crowd = max(self._crowd, jobs)
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
            job.end(Refusal(_ENDING, 503, retry_after=10))
        self._waiting.clear()
        if self._groups:
            await asyncio.wait(list(self._groups), timeout=patience)
        for job in self.jobs:
            job.cancel()
        if self._groups:
            await asyncio.wait(list(self._groups))
        self._threads.shutdown(wait=False)

    def _open(self) -> None:
        """Ends a pause in which no request ran."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._crowd = self.waiting
        self._begin()

    def _begin(self) -> None:
        """Runs the requests for which there is a place."""
        while self._waiting and len(self._groups) < self._at_once:
            first = self._waiting[0]
            group = [first]
            if first.alike is not None:
                like = [job for job in self._waiting if job.alike == first.alike]
                if len(like) >= first.least and self._together >= first.least:
                    group = like[: self._together]
            self._waiting = [job for job in self._waiting if job not in group]
            task = asyncio.create_task(self._run(group))
            self._groups[task] = group
            task.add_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[None]) -> None:
        del self._groups[task]
        self._begin()

    async def _run(self, group: list[Job]) -> None:
        loop = asyncio.get_running_loop()
        turns = [self._turn(job, loop) for job in group]
        began, ended = time.monotonic(), None
        try:
            await loop.run_in_executor(self._threads, group[0].work, turns)
        except Exception as error:
            if not isinstance(error, KNNLogitsError) and not all(job.cancelled for job in group):
                log_failure(error)
            ended = refusal_of(error)
        finally:
            for job in group:
                job.end(ended)
            took = (time.monotonic() - began) / len(group)
            self._usual += 0.2 * (took - self._usual)

    def _turn(self, job: Job, loop: asyncio.AbstractEventLoop) -> Turn:
        job.deadline = Deadline(self._seconds)

        def tell(part: AnswerPart) -> None:
            loop.call_soon_threadsafe(job.news.put_nowait, part)

        def finish() -> None:
            loop.call_soon_threadsafe(job.end, None)

        return Turn(job.request, tell, job.deadline, finish)
