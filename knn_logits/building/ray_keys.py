"""Computes keys on a Ray cluster; this machine writes them in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.steps import computes_canary
from knn_logits.engine.forward import evaluating, input_device
from knn_logits.engine.keys import Sources, compute_keys, grouped, groups_from
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import TextWindow
from knn_logits.ray.connection import connect, machines
from knn_logits.ray.workers import Workers

# A group of windows, after the part of the text that they read and count from, int32.
Piece = tuple[Array, list[TextWindow]]


class KeyWorker:
    """Computes keys on one machine; the canary is of the machine with the command."""

    def __init__(
        self,
        model: nn.Module,
        location: KeyLocation,
        shape: Mapping[str, Any],
        threads: int,
        canary: Mapping[str, Array],
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        self.model, self.location = model, location
        self.shape, self.canary = shape, canary

    def ready(self) -> bool:
        """Whether the canary's keys are, to the last bit, those of the machine with the command."""
        return computes_canary(
            self.model,
            self.location,
            self.canary,
            "a worker computes other keys than this machine: install the same versions of torch "
            "and transformers on all machines of the cluster",
        )

    def work(self, piece: Piece) -> Array:
        """Computes the keys of a piece, [entries, dim]."""
        with evaluating(self.model):
            parts = compute_keys(self.model, self.location, *piece, **self.shape)
            return np.concatenate(list(parts))


def cut(
    tokens: Array,
    groups: Iterable[list[TextWindow]],
    first_entry: int = 0,
    sources: Sources | None = None,
) -> Iterator[tuple[int, Piece]]:
    """Yields pieces of work, and for each the number of its keys before `first_entry`."""
    for group in groups_from(groups, first_entry, sources):
        begin, entry, last = group[0].start, group[0].first_entry, group[-1]
        moved = [
            replace(window, start=window.start - begin, first_entry=window.first_entry - entry)
            for window in group
        ]
        part = np.array(tokens[begin : last.start + last.size])
        yield max(0, first_entry - entry), (part, moved)


def cluster_keys(address: str, canary: Mapping[str, Array]) -> Callable[..., Iterator[Array]]:
    """Returns what takes the place of `compute_keys` where a cluster computes the keys."""
    ray = connect(address)

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
        count, resources, threads = _places(ray, input_device(model).type == "cuda")
        groups = grouped(windows, **shape)
        surplus: list[int] = []

        def pieces() -> Iterator[Piece]:
            for before, piece in cut(tokens, groups, first_entry, sources):
                surplus.append(before)
                yield piece

        shared = (model, location, shape, threads, canary)
        # Each machine gets the shared arguments once.
        references = [ray.put(value) for value in shared]
        worker = ray.remote(max_restarts=0, scheduling_strategy="SPREAD", **resources)(KeyWorker)
        with Workers(ray, lambda: worker.remote(*references), count) as workers:
            for number, keys in enumerate(workers.results(pieces())):
                advance(len(keys))
                yield keys[surplus[number] :]

    return compute


def _places(ray: Any, on_gpu: bool) -> tuple[int, dict[str, float], int]:
    """The number of workers, what each needs, and its CPU threads: one a GPU, or one a machine."""
    resources = [machine["Resources"] for machine in machines(ray)]
    threads = int(min((place["CPU"] for place in resources), default=1))
    if on_gpu:
        gpus = int(sum(place.get("GPU", 0) for place in resources))
        return max(1, gpus), {"num_gpus": 1, "num_cpus": 1}, threads
    return max(1, len(resources)), {"num_cpus": threads}, threads
