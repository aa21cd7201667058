"""Joins a Ray cluster. Only this module imports ray, and only when it is needed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from knn_logits.errors import KNNLogitsError, MissingDependencyError, UnreachableError

# How often Ray runs a task again whose process or machine was lost.
_TRIES = 5
# The number of tasks for each place of the cluster that wait or run at once.
_TASKS_AHEAD = 3
# The number of seconds in which a task has to end, from the time when its result is next.
_PATIENCE = 1800.0

# The function that does the work in a process of the cluster, by the name of the job.
_kept: dict[str, Any] = {}


def connect(address: str) -> Any:
    """Joins a cluster, "auto", host:port or "local", once; returns the ray module."""
    # Ray would send statistics about its use to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            "Ray is not installed: pip install 'knn-logits[ray]', on every machine of the cluster"
        ) from error
    if ray.is_initialized():
        return ray
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except (OSError, RuntimeError, ValueError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnreachableError(
            f"there is no Ray cluster at {address!r} ({reason}): start one with `ray start "
            "--head`, or use --ray local for this machine only"
        ) from error
    return ray


def machines(ray: Any) -> list[dict[str, Any]]:
    """The description of each machine of the cluster that is alive and has a CPU."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def result_of(ray: Any, ref: Any, seconds: float) -> Any:
    """Waits for a result; raises TimeoutError for none yet, UnreachableError for none ever."""
    errors = ray.exceptions
    try:
        return ray.get(ref, timeout=seconds)
    except errors.GetTimeoutError as error:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from error
    except errors.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, KNNLogitsError):
            raise cause from None
        raise
    except errors.RayError as error:
        reason = " ".join(str(error).split())[:300]
        raise UnreachableError(f"no answer ({type(error).__name__}: {reason})") from error


def results(
    ray: Any,
    make: Callable[..., Callable[[Any], Any]],
    shared: Sequence[Any],
    pieces: Iterable[Any],
    places: int,
    resources: Mapping[str, float],
) -> Iterator[Any]:
    """Yields results of pieces in their order, by `make(*shared)`, made once in each process."""
    name, references = uuid4().hex, [ray.put(value) for value in shared]
    task = ray.remote(max_retries=_TRIES, scheduling_strategy="SPREAD", **resources)(_work)
    waiting: deque[Any] = deque()
    try:
        for piece in pieces:
            waiting.append(task.remote(name, make, references, piece))
            if len(waiting) >= _TASKS_AHEAD * places:
                yield _result(ray, waiting.popleft())
        while waiting:
            yield _result(ray, waiting.popleft())
    finally:
        for reference in waiting:
            with suppress(Exception):
                ray.cancel(reference, force=True)


def _work(name: str, make: Callable[..., Any], references: list[Any], piece: Any) -> Any:
    """Does a piece of work in a process of the cluster."""
    import ray

    if name not in _kept:
        _kept.clear()
        _kept[name] = make(*ray.get(references))
    return _kept[name](piece)


def _result(ray: Any, reference: Any) -> Any:
    try:
        return result_of(ray, reference, _PATIENCE)
    except TimeoutError as error:
        raise UnreachableError(
            f"{error}: check `ray status` for lost machines and for room, then run the same "
            "command again to resume"
        ) from error
