"""What commands on several machines share: the options of a cluster, and ranks of torchrun."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from knn_logits.cli.terminal import tell
from knn_logits.errors import ConfigError

if TYPE_CHECKING:
    from knn_logits.ray.searching import RayIndexes
    from knn_logits.store.datastore import Datastore


def spread_indexes(
    address: str | None,
    shards: int | None = None,
    replicas: int | None = None,
    partial: bool = False,
) -> RayIndexes | None:
    """Joins the cluster that --ray names; None without --ray.

    Raises:
        ConfigError: when an option is given that means nothing without --ray.
        MissingDependencyError: when Ray is not installed.
        UnreachableError: when there is no cluster at the address.
    """
    if address is None:
        given = {"--shards": shards, "--replicas": replicas, "--partial": partial or None}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} has no effect without --ray ADDRESS: add it")
        return None
    from knn_logits.ray.searching import RayIndexes

    return RayIndexes(address, shards=shards, replicas=replicas or 1, partial=partial)


@contextmanager
def searching(indexes: RayIndexes | None, stores: Sequence[Datastore]) -> Iterator[None]:
    """Ends the shards on the cluster when the searches are over."""
    if indexes is None:
        yield
        return
    for store in stores:
        if store.manifest.on_demand is not None:
            tell(f"{store.folder} stores no keys, so it is searched here and not on the cluster")
    try:
        yield
    finally:
        indexes.close()


def torchrun_rank() -> int | None:
    """The number of this process among those that torchrun has started; None without it."""
    from knn_logits.building.ranks import started_by_torchrun

    return int(os.environ["RANK"]) if started_by_torchrun() else None


def device_of_rank(device: str) -> str:
    """The device of this process, where torchrun starts one process for each GPU."""
    import torch

    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"


def partial_answers(indexes: RayIndexes | None) -> dict[str, int]:
    """Tells how many searches lacked a part of the index.

    Returns:
        `partial_answers` for the JSON of a command that was given --ray.
    """
    if indexes is None:
        return {}
    count = indexes.partial_answers
    if count:
        tell(f"{count:,} searches lacked a part of the index, so this answer is partial")
    return {"partial_answers": count}
