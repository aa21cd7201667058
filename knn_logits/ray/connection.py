"""Joins a Ray cluster. Only this module imports ray, and only when it is needed."""

from __future__ import annotations

import os
from typing import Any

from knn_logits.errors import KNNLogitsError, MissingDependencyError, UnreachableError


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
