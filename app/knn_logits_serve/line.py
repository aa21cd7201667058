"""The queue before the model: some requests run, some wait, and further ones are refused.

Requests that are alike run together, once so many wait that this is faster. Requests that share the
model's passes join a running group at any time. A request, or a batch of them, runs in a thread of
its own, and passes what it writes to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from knn_logits import Deadline, KNNLogitsError, SharedPasses
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
    passes: SharedPasses | None = None  # of its group


# Runs requests that are alike, in a thread.
Work: TypeAlias = Callable[[Sequence[Turn]], None]


class Job:
    """A request that waits or runs."""

    def __init__(
        self,
        request: GenerationRequest,
        work: Work,
        alike: Hashable | None,
        least: int,
        share: Callable[[], SharedPasses] | None,
    ) -> None:
        self.request, self.work, self.alike, self.least = request, work, alike, least
        self.share = share
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


@dataclass(eq=False)
class Group:
    """Requests that run together, in one batch or in passes that they share."""

    passes: SharedPasses | None
    jobs: list[Job] = field(default_factory=list)


class Line:
    """Runs requests in their order, those that are alike together, past those between them."""

    def __init__(self, at_once: int, waiting: int, seconds: float, together: int = 1) -> None:
        self._threads = ThreadPoolExecutor(at_once * together, thread_name_prefix="write")
        self._at_once, self._most_waiting, self._seconds = at_once, waiting, seconds
        self._together = together
        self._waiting: list[Job] = []
        self._groups: list[Group] = []
        self._tasks: set[asyncio.Task[None]] = set()
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
        return sum(len(group.jobs) for group in self._groups)

    @property
    def jobs(self) -> list[Job]:
        """The requests that run, and those that wait."""
        return [*(job for group in self._groups for job in group.jobs), *self._waiting]

    def join(
        self,
        request: GenerationRequest,
        work: Work,
        *,
        alike: Hashable | None = None,
        least: int = 2,
        share: Callable[[], SharedPasses] | None = None,
    ) -> Job:
        """Puts a request at the end of the queue.

        Args:
            request: The request.
            work: Runs it.
            alike: What requests of one batch have in common; None for a request alone.
            least: The fewest requests of a batch.
            share: Makes the passes that requests of a group share, if this one can share any.
        """
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
        job: Job = Job(request, work, alike, least, share)
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
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)
        for job in self.jobs:
            job.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
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
        while self._waiting:
            first = self._waiting[0]
            jobs = [first]
            if len(self._groups) < self._at_once:
                group = Group(None if first.share is None else first.share())
                self._groups.append(group)
                if first.alike is not None:
                    like = [job for job in self._waiting if job.alike == first.alike]
                    if len(like) >= first.least and self._together >= first.least:
                        jobs = like[: self._together]
            else:
                smallest = None if first.share is None else self._smallest()
                if smallest is None:
                    return
                group = smallest
            group.jobs += jobs
            self._waiting = [job for job in self._waiting if job not in jobs]
            task = asyncio.create_task(self._run(jobs, group.passes))
            self._tasks.add(task)
            task.add_done_callback(partial(self._leave, group, jobs))

    def _smallest(self) -> Group | None:
        """The smallest group that a further request may join."""
        groups = [group for group in self._groups if group.passes is not None]
        groups = [group for group in groups if len(group.jobs) < self._together]
        return min(groups, key=lambda group: len(group.jobs), default=None)

    def _leave(self, group: Group, jobs: list[Job], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        group.jobs = [job for job in group.jobs if job not in jobs]
        if not group.jobs:
            self._groups.remove(group)
        self._begin()

    async def _run(self, group: list[Job], passes: SharedPasses | None) -> None:
        loop = asyncio.get_running_loop()
        turns = [self._turn(job, loop, passes) for job in group]
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

    def _turn(self, job: Job, loop: asyncio.AbstractEventLoop, passes: SharedPasses | None) -> Turn:
        job.deadline = Deadline(self._seconds)

        def tell(part: AnswerPart) -> None:
            loop.call_soon_threadsafe(job.news.put_nowait, part)

        def finish() -> None:
            loop.call_soon_threadsafe(job.end, None)

        return Turn(job.request, tell, job.deadline, finish, passes)
