"""Runs functions in threads, and passes on what they emit."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from knn_logits.hosting import Deadline

_LOOK_SECONDS = 0.1
_END = object()


def emitted(
    runs: Mapping[str, Callable[[Callable[[Any], None]], None]], deadline: Deadline
) -> Iterator[list[Any]]:
    """Runs functions, each in a thread of its name, and yields what they emit until all end.

    Each list has everything that waits, and is empty if nothing came for a tenth of a second. When
    nobody reads on, the deadline is cancelled. The iterator ends when the threads have ended.
    """
    news: queue.Queue[Any] = queue.Queue()

    def body(run: Callable[[Callable[[Any], None]], None]) -> None:
        try:
            run(news.put)
            news.put(_END)
        except BaseException as error:
            news.put(error)

    threads = [
        threading.Thread(target=body, args=[run], name=name, daemon=True)
        for name, run in runs.items()
    ]
    for thread in threads:
        thread.start()
    running = len(threads)
    try:
        while running:
            steps = []
            with contextlib.suppress(queue.Empty):
                steps.append(news.get(timeout=_LOOK_SECONDS))
            steps += [news.get() for _ in range(news.qsize())]
            for step in steps:
                if isinstance(step, BaseException):
                    raise step
                running -= step is _END
            yield [step for step in steps if step is not _END]
    finally:
        deadline.cancel()
        for thread in threads:
            thread.join()
