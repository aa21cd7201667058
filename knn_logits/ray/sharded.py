"""An index whose parts answer from elsewhere. Nothing here knows of Ray."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError, UnreachableError
from knn_logits.locks import new_lock
from knn_logits.ray.merging import merged
from knn_logits.settings.config import Metric

logger = logging.getLogger(__name__)

# A shard that was opened has so many seconds to answer; it may have to be opened again meanwhile.
PATIENCE = 60.0
# Waits so many seconds for an answer. It raises a TimeoutError while there is none yet, and an
# UnreachableError where none will come.
Answer = Callable[[float], Any]


class ShardedIndex:
    """An index whose shards answer from elsewhere. It follows the protocol of `Index`.

    Args:
        ask: Asks one shard: its number, the name of a method and the arguments.
        spans: The range of entries of each shard.
        dim: Length of a key.
        metric: How keys are compared.
        partial: Whether shards that do not answer are left out of an answer.
        patience: Seconds that a shard has to answer.

    Attributes:
        partial_answers: Number of searches that lacked a shard.
        nprobe: Inverted lists visited for each query, which the shards were opened with.
        actors: What answers for each shard: its replicas.
    """

    def __init__(
        self,
        ask: Callable[..., Answer],
        spans: list[tuple[int, int]],
        dim: int,
        metric: Metric,
        *,
        partial: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self.metric: Metric = metric
        self.dim = dim
        self.size = spans[-1][1]
        self.partial_answers = 0
        self.nprobe: int | None = None
        self.actors: list[list[Any]] = []
        self._ask, self._spans = ask, spans
        self._partial, self._patience = partial, patience
        # For each shard that does not answer, what it was asked last.
        self._away: dict[int, Answer] = {}
        self._lock = new_lock(self)

    @property
    def away(self) -> list[int]:
        """The numbers of the shards that did not answer when they were asked last."""
        return sorted(self._away)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Searches as `Index.search` says. Neighbors are sorted, with the nearest first.

        Raises:
            UnreachableError: when a shard does not answer, and partial answers were not asked for,
                or when no shard answers.
        """
        array = np.ascontiguousarray(queries.detach().cpu().numpy(), np.float32)
        k = min(k, self.size)
        asked = [number for number in range(len(self._spans)) if self._is_back(number)]
        answers = [(number, self._ask(number, "search", array, k)) for number in asked]
        until = time.monotonic() + self._patience
        parts = []
        for number, answer in answers:
            try:
                parts.append(answer(max(0.0, until - time.monotonic())))
            except (TimeoutError, UnreachableError):
                if not self._partial:
                    raise self.unreachable(number) from None
                self._leave_out(number, answer)
        if len(parts) < len(self._spans):
            if not parts:
                raise self.unreachable(self.away[0])
            with self._lock:
                self.partial_answers += 1
        distances, ids = merged(parts, k, self.metric, len(array))
        return torch.from_numpy(distances), torch.from_numpy(ids)

    def _is_back(self, number: int) -> bool:
        """Whether a shard is to be asked: it did answer what it was asked last."""
        before = self._away.get(number)
        if before is None:
            return True
        try:
            before(0.0)
        except (TimeoutError, UnreachableError):
            return False
        logger.warning("shard %d answers again", number)
        self._away.pop(number, None)
        return True

    def _leave_out(self, number: int, answer: Answer) -> None:
        first, last = self._spans[number]
        logger.warning(
            "shard %d, the entries %d to %d, does not answer: answers are partial until it does",
            number,
            first,
            last - 1,
        )
        self._away[number] = answer

    def unreachable(self, number: int) -> UnreachableError:
        """Makes the error for a shard that does not answer."""
        first, last = self._spans[number]
        return UnreachableError(
            f"shard {number} of {len(self._spans)}, the entries {first:,} to {last - 1:,}, does "
            "not answer: look at `ray status` and run the command again, or give --partial to go "
            "on without it"
        )

    def reconstruct(self, ids: Array) -> Tensor:
        """See `Index.reconstruct`.

        Raises:
            UnreachableError: when a shard does not answer.
        """
        ids = np.asarray(ids, np.int64)
        out = np.empty((len(ids), self.dim), np.float32)
        asked = []
        for number, (first, last) in enumerate(self._spans):
            inside = (ids >= first) & (ids < last)
            if inside.any():
                asked.append((number, inside, self._ask(number, "reconstruct", ids[inside])))
        for number, inside, answer in asked:
            try:
                out[inside] = answer(self._patience)
            except (TimeoutError, UnreachableError):
                raise self.unreachable(number) from None
        return torch.from_numpy(out)

    def remove(self, ids: Array) -> None:
        """Not possible: a shard leaves documents out from its opening on."""
        raise ConfigError(
            f"{len(ids)} entries cannot be removed from an index that is spread over machines: "
            "open it again without their documents"
        )
