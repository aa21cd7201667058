"""Computes keys on a Ray cluster or in the processes of torchrun; one process writes them."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from knn_logits.arrays import Array
from knn_logits.engine.compatibility import SAME_KEYS, canary_keys, relative_error
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import Sources, TextWindow, compute_keys, grouped, groups_from
from knn_logits.errors import ConfigError, KNNLogitsError, MismatchError
from knn_logits.ray.connection import connect, machines, results
from knn_logits.store.layout import CANARY_KEYS, CANARY_TOKENS

logger = logging.getLogger(__name__)

# A process of torchrun waits for the others as long as the longest build takes.
_WAITING_TIME = timedelta(days=30)

# The part of the text that a group of windows reads, int32, the windows, which count from its
# begin, and the first of their entries to compute.
Piece = tuple[Array, list[TextWindow], int]
# A task of a worker: a model, the place of its keys, and their shape.
Task = tuple[nn.Module, KeyLocation, Mapping[str, Any]]


class KeyWorker:
    """Computes keys in one process; the canary is of the machine with the command."""

    def __init__(
        self,
        model: nn.Module,
        location: KeyLocation,
        shape: Mapping[str, Any],
        threads: int,
        canary: Mapping[str, Array],
    ) -> None:
        torch.set_num_threads(threads)
        self._model, self._location, self._shape = model, location, shape
        keys = canary_keys(model, location, canary[CANARY_TOKENS])
        if relative_error(keys, canary[CANARY_KEYS]) > SAME_KEYS:
            raise MismatchError(
                "a worker computes other keys than this machine: give all of them the same model, "
                "and install the same versions of torch and transformers"
            )

    def __call__(self, piece: Piece) -> Array:
        tokens, windows, first = piece
        with evaluating(self._model):
            parts = compute_keys(
                self._model, self._location, tokens, windows, first_entry=first, **self._shape
            )
            return np.concatenate(list(parts))


def piece_of(tokens: Array, group: list[TextWindow], first_entry: int) -> Piece:
    """The piece of work that a group of windows makes: the keys from `first_entry` on."""
    begin, entry, last = group[0].start, group[0].first_entry, group[-1]
    moved = [
        replace(window, start=window.start - begin, first_entry=window.first_entry - entry)
        for window in group
    ]
    return np.array(tokens[begin : last.start + last.size]), moved, max(0, first_entry - entry)


def elsewhere(
    computed: Callable[[Task, Iterator[Piece]], Iterable[Array]],
) -> Callable[..., Iterator[Array]]:
    """Makes what takes the place of `compute_keys` where others compute the keys of pieces."""

    def compute(
        model: nn.Module,
        location: KeyLocation,
        tokens: Array,
        windows: Sequence[TextWindow],
        *,
        first_entry: int = 0,
        sources: Sources | None = None,
        advance: Callable[[int], None] = lambda _: None,
        **shape: Any,
    ) -> Iterator[Array]:
        groups = groups_from(grouped(windows, **shape), first_entry, sources)
        pieces = (piece_of(tokens, group, first_entry) for group in groups)
        for keys in computed((model, location, shape), pieces):
            advance(len(keys))
            yield keys

    return compute


def on_cluster(address: str, canary: Mapping[str, Array]) -> Callable[..., Iterator[Array]]:
    ray = connect(address)

    def computed(task: Task, pieces: Iterator[Piece]) -> Iterable[Array]:
        count, resources, threads = _places(ray, input_device(task[0]).type == "cuda")
        return results(ray, KeyWorker, (*task, threads, canary), pieces, count, resources)

    return elsewhere(computed)


def _places(ray: Any, on_gpu: bool) -> tuple[int, dict[str, float], int]:
    """The number of workers, what each needs, and its CPU threads: one a GPU, or one a machine."""
    resources = [machine["Resources"] for machine in machines(ray)]
    threads = int(min((place["CPU"] for place in resources), default=1))
    if on_gpu:
        gpus = int(sum(place.get("GPU", 0) for place in resources))
        return max(1, gpus), {"num_gpus": 1, "num_cpus": 1}, threads
    return max(1, len(resources)), {"num_cpus": threads}, threads


def started_by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and "WORLD_SIZE" in os.environ


@dataclass(frozen=True)
class Ranks:
    """The processes of torchrun: the number of this one, and how many there are.

    Rank 0 sends pieces of work and writes the keys. If a process ends with an error, torchrun
    ends the others.
    """

    rank: int
    world: int

    @classmethod
    def joined(cls) -> Ranks:
        if not started_by_torchrun():
            raise ConfigError(
                "this process was not started by torchrun: start it with `torchrun "
                "--nproc-per-node 2 -m knn_logits build ...`, or remove torchrun=True"
            )
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=_WAITING_TIME)
        return cls(dist.get_rank(), dist.get_world_size())

    def follow(self, model: nn.Module, location: KeyLocation) -> None:
        """Does the work that rank 0 sends, until the build is done."""
        worker, threads = None, torch.get_num_threads()
        try:
            while (work := self._scattered(None)) is not None:
                shape, canary, piece = work
                worker = worker or KeyWorker(model, location, shape, threads, canary)
                self._gathered(worker(piece) if piece is not None else None)
        except KNNLogitsError as error:
            logger.error(f"rank {self.rank}: {error}")
            raise

    def end(self) -> None:
        """Tells the other processes that the build is done."""
        self._scattered([None] * self.world)

    def lead(self, canary: Mapping[str, Array]) -> Callable[..., Iterator[Array]]:
        """Computes keys on rank 0 together with the other ranks, a piece each at a time."""

        def computed(task: Task, pieces: Iterator[Piece]) -> Iterable[Array]:
            worker, shape = KeyWorker(*task, torch.get_num_threads(), canary), task[2]
            while batch := list(itertools.islice(pieces, self.world)):
                lacking = [None] * (self.world - len(batch))
                self._scattered([(shape, canary, piece) for piece in (*batch, *lacking)])
                yield from (one for one in self._gathered(worker(batch[0])) if one is not None)

        return elsewhere(computed)

    def _scattered(self, values: list[Any] | None) -> Any:
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, values, src=0)
        return mine[0]

    def _gathered(self, value: Array | None) -> list[Any]:
        values: list[Any] = [None] * self.world
        dist.gather_object(value, None if self.rank else values, dst=0)
        return values
