"""An index whose shards answer from elsewhere; no word of Ray."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, UnreachableError
from knn_logits.metrics import Metric
from knn_logits.ray.shard import Neighborhood

# Number of seconds in which a shard has to answer; it may have to be opened again meanwhile.
PATIENCE = 60.0
# Waits a number of seconds for an answer. It raises a TimeoutError while there is none yet, and an
# UnreachableError where none will come.
Answer = Callable[[float], Any]


def ranges(entries: int, shards: int) -> list[tuple[int, int]]:
    """Cuts entries into at most `shards` ranges of nearly equal length, none of which is empty."""
    shards = max(1, min(shards, entries))
    ends = [entries * number // shards for number in range(shards + 1)]
    return list(itertools.pairwise(ends))


def merged(parts: Sequence[Neighborhood], k: int) -> Neighborhood:
    """Selects the k nearest entries of all shards, nearest first, then by id, padding last."""
    nearness, ids = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    nearness = np.where(ids < 0, np.float32(-np.inf), nearness)
    order = np.lexsort((ids, -nearness), axis=1)[:, :k]
    return np.take_along_axis(nearness, order, axis=1), np.take_along_axis(ids, order, axis=1)


class ShardedIndex:
    """An index whose shards answer from elsewhere. It follows the protocol of `Index`."""

    def __init__(
        self,
        ask: Callable[..., Answer],  # the shard's number, the name of a method, its arguments
        spans: list[tuple[int, int]],
        dim: int,
        metric: Metric,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self.metric: Metric = metric
        self.dim = dim
        self.size = spans[-1][1]
        self.nprobe: int | None = None
        self.actors: list[Any] = []
        self._ask, self._spans, self._patience = ask, spans, patience

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Searches as `Index.search` says. Neighbors are sorted, with the nearest first."""
        array = np.ascontiguousarray(queries.detach().cpu().numpy(), np.float32)
        k = min(k, self.size)
        answers = [self._ask(number, "search", array, k) for number in range(len(self._spans))]
        until = time.monotonic() + self._patience
        parts = []
        for number, answer in enumerate(answers):
            try:
                parts.append(answer(max(0.0, until - time.monotonic())))
            except (TimeoutError, UnreachableError):
                raise self.unreachable(number) from None
        nearness, ids = merged(parts, k)
        return torch.from_numpy(nearness), torch.from_numpy(ids)

    def unreachable(self, number: int) -> UnreachableError:
        first, last = self._spans[number]
        return UnreachableError(
            f"shard {number} of {len(self._spans)}, the entries {first:,} to {last - 1:,}, does "
            "not respond: check `ray status` and run the command again"
        )

    def remove(self, ids: Array) -> None:
        """Not possible: a shard leaves documents out from its opening on."""
        raise ConfigError(
            f"{len(ids)} entries cannot be removed from a sharded index: reopen it without their "
            "documents"
        )
