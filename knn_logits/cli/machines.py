"""The options --ray, --shards and --partial of commands that search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knn_logits.cli.common import tell
from knn_logits.errors import ConfigError

if TYPE_CHECKING:
    from knn_logits.machines.searching import RayIndexes


def spread_indexes(address: str | None, shards: int | None, partial: bool) -> RayIndexes | None:
    """Joins the cluster that --ray names; None without --ray.

    Raises:
        ConfigError: when an option is given that means nothing without --ray.
        MissingDependencyError: when Ray is not installed.
        UnreachableError: when there is no cluster at the address.
    """
    if address is None:
        if shards is not None or partial:
            raise ConfigError("--shards and --partial have no effect without --ray ADDRESS: add it")
        return None
    from knn_logits.machines.searching import RayIndexes

    return RayIndexes(address, shards=shards, partial=partial)


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
