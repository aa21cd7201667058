"""Computes the keys of a build on the machines of a Ray cluster.

One machine computes keys group by group, and no key depends on another group. So a group is the
piece of work that a worker is given: a part of the text and its windows. The keys come back in the
groups' order, and the machine that was given the command writes them. This gives the bytes that it
would write by itself, and it goes on in the same way where it was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from knn_logits.arrays import Array
from knn_logits.engine.compatibility import SAME, canary_keys, relative_error
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.keys import Sources, compute_keys, grouped, groups_from
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import TextWindow
from knn_logits.errors import MismatchError
from knn_logits.ray.connection import connect, machines
from knn_logits.ray.workers import Workers


@dataclass(frozen=True)
class Piece:
    """A group of windows with the part of the text that they read.

    Attributes:
        tokens: int32, the part of the text.
        windows: The windows, which count from the beginning of that part.
    """

    tokens: Array
    windows: list[TextWindow]


@dataclass(frozen=True)
class Task:
    """What all workers have in common.

    Attributes:
        location: Where the key is.
        dim: Length of a key.
        dtype: The keys' precision.
        batch_tokens: Tokens of one forward pass.
        threads: CPU threads of a worker.
        canary_tokens: The fixed text, int32.
        canary_keys: Its keys on the machine that was given the command.
    """

    location: KeyLocation
    dim: int
    dtype: str
    batch_tokens: int
    threads: int
    canary_tokens: Array
    canary_keys: Array


class KeyWorker:
    """Computes keys on one machine.

    Args:
        model: The model.
        task: What all workers have in common.
    """

    def __init__(self, model: nn.Module, task: Task) -> None:
        import torch

        torch.set_num_threads(task.threads)
        self.model, self.task = model, task

    def ready(self) -> bool:
        """Compares the canary's keys with those of the machine that was given the command.

        Returns:
            Whether they are equal to the last bit.

        Raises:
            MismatchError: when they are not nearly equal.
        """
        task = self.task
        with evaluating(self.model):
            own = canary_keys(self.model, task.location, task.canary_tokens)
        if relative_error(own, task.canary_keys) > SAME:
            raise MismatchError(
                "a worker computes other keys than this machine: install the same versions of "
                "torch and transformers on all machines of the cluster"
            )
        return bool(np.array_equal(own, task.canary_keys))

    def work(self, piece: Piece) -> Array:
        """Computes the keys of a piece, [entries, dim]."""
        task = self.task
        with evaluating(self.model):
            parts = compute_keys(
                self.model,
                task.location,
                piece.tokens,
                piece.windows,
                dim=task.dim,
                dtype=task.dtype,
                batch_tokens=task.batch_tokens,
            )
            return np.concatenate(list(parts))


def cut(
    tokens: Array,
    windows: Sequence[TextWindow],
    *,
    dim: int,
    dtype: str,
    batch_tokens: int,
    first_entry: int = 0,
    sources: Sources | None = None,
) -> Iterator[tuple[int, Piece]]:
    """Cuts a build into pieces of work. The arguments are those of `compute_keys`.

    Yields:
        Each piece, and the number of its keys that come before `first_entry`.
    """
    groups = grouped(windows, dim=dim, dtype=dtype, batch_tokens=batch_tokens)
    for group in groups_from(groups, first_entry, sources):
        begin, entry, last = group[0].start, group[0].first_entry, group[-1]
        moved = [
            replace(one, start=one.start - begin, first_entry=one.first_entry - entry)
            for one in group
        ]
        part = np.array(tokens[begin : last.start + last.size])
        yield max(0, first_entry - entry), Piece(part, moved)


def spread_keys(
    address: str, canary_tokens: Array, canary: Array
) -> Callable[..., Iterator[Array]]:
    """Returns what takes the place of `compute_keys` when a build is spread over machines.

    Args:
        address: The cluster's address, see `machines.connection.connect`.
        canary_tokens: The canary's text.
        canary: Its keys on this machine.

    Raises:
        MissingDependencyError: when Ray is not installed.
        UnreachableError: when there is no cluster at the address.
    """
    ray = connect(address)

    def compute(
        model: nn.Module,
        location: KeyLocation,
        tokens: Array,
        windows: Sequence[TextWindow],
        *,
        dim: int,
        dtype: str,
        batch_tokens: int,
        first_entry: int = 0,
        sources: Sources | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Iterator[Array]:
        on_gpu = input_device(model).type == "cuda"
        count, needed, threads = _places(ray, on_gpu)
        task = Task(location, dim, dtype, batch_tokens, threads, canary_tokens, canary)
        worker: Any = ray.remote(max_restarts=0, scheduling_strategy="SPREAD", **needed)(KeyWorker)
        # The weights are sent once to each machine.
        shared = ray.put(model), ray.put(task)
        pieces = cut(
            tokens,
            windows,
            dim=dim,
            dtype=dtype,
            batch_tokens=batch_tokens,
            first_entry=first_entry,
            sources=sources,
        )
        known: list[int] = []

        def given() -> Iterator[Piece]:
            for before, piece in pieces:
                known.append(before)
                yield piece

        with Workers(ray, lambda: worker.remote(*shared), count) as workers:
            for number, keys in enumerate(workers.results(given())):
                advance(len(keys))
                yield keys[known[number] :]

    return compute


def _places(ray: Any, on_gpu: bool) -> tuple[int, dict[str, float], int]:
    """The number of workers, what each needs, and its CPU threads: one a GPU, or one a machine."""
    all_machines = [one["Resources"] for one in machines(ray)]
    least = int(min((one["CPU"] for one in all_machines), default=1))
    if on_gpu:
        gpus = int(sum(one.get("GPU", 0) for one in all_machines))
        return max(1, gpus), {"num_gpus": 1, "num_cpus": 1}, least
    return max(1, len(all_machines)), {"num_cpus": least}, least
