"""Joins a Ray cluster. Only this module imports ray, and only when it is needed."""

from __future__ import annotations

import os
from typing import Any

from knn_logits.errors import MissingDependencyError, UnreachableError

# This name starts a cluster of this machine alone, which ends with the program.
LOCAL = "local"


def ray_module() -> Any:
    """Imports the ray module.

    Raises:
        MissingDependencyError: when Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            "Ray is not installed: pip install 'knn-logits[ray]', on every machine of the cluster"
        ) from error
    return ray


def connect(address: str) -> Any:
    """Joins a cluster, unless this program is part of one already.

    Args:
        address: "auto" for the cluster that this machine is part of, host:port of its head, or
            "local" for a cluster of this machine alone.

    Returns:
        The ray module.

    Raises:
        MissingDependencyError: when Ray is not installed.
        UnreachableError: when there is no cluster at the address.
    """
    # Ray would send statistics about its use to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = ray_module()
    if ray.is_initialized():
        return ray
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except (OSError, RuntimeError, ValueError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnreachableError(
            f"there is no Ray cluster at {address!r} ({reason}): start one with `ray start "
            "--head`, or give --ray local to use this machine alone"
        ) from error
    return ray


def machines(ray: Any) -> list[dict[str, float]]:
    """The resources of each machine of the cluster that is alive and has a CPU."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [one for one in nodes if one.get("CPU", 0) >= 1]
