"""Computes keys on a Ray cluster; this machine writes them in order."""

from __future__ import annotations

import logging
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
from knn_logits.ray.connection import connect, machines, results

logger = logging.getLogger(__name__)

# The part of the text that a group of windows reads, int32, the windows, which count from its
# begin, and the first of their entries to compute.
Piece = tuple[Array, list[TextWindow], int]


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
        self._model, self._location, self._shape = model, location, shape
        self._same = computes_canary(
            model,
            location,
            canary,
            "a worker computes other keys than this machine: install the same versions of torch "
            "and transformers on all machines of the cluster",
        )

    def __call__(self, piece: Piece) -> tuple[Array, bool]:
        """Returns the keys of a piece, [entries, dim], and whether it computes to the last bit."""
        tokens, windows, first = piece
        with evaluating(self._model):
            parts = compute_keys(
                self._model, self._location, tokens, windows, first_entry=first, **self._shape
            )
            return np.concatenate(list(parts)), self._same


def cut(
    tokens: Array,
    groups: Iterable[list[TextWindow]],
    first_entry: int = 0,
    sources: Sources | None = None,
) -> Iterator[Piece]:
    """Yields pieces of work: the keys from `first_entry` on."""
    for group in groups_from(groups, first_entry, sources):
        begin, entry, last = group[0].start, group[0].first_entry, group[-1]
        moved = [
            replace(window, start=window.start - begin, first_entry=window.first_entry - entry)
            for window in group
        ]
        part = np.array(tokens[begin : last.start + last.size])
        yield part, moved, max(0, first_entry - entry)


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
        pieces = cut(tokens, grouped(windows, **shape), first_entry, sources)
        shared = (model, location, shape, threads, canary)
        warned = False
        for keys, same in results(ray, KeyWorker, shared, pieces, count, resources):
            if not same and not warned:
                warned = True
                logger.warning(
                    "a worker runs on a different CPU or GPU type, which rounds differently: the "
                    "files may differ in the last bits from those of a single machine"
                )
            advance(len(keys))
            yield keys

    return compute


def _places(ray: Any, on_gpu: bool) -> tuple[int, dict[str, float], int]:
    """The number of workers, what each needs, and its CPU threads: one a GPU, or one a machine."""
    resources = [machine["Resources"] for machine in machines(ray)]
    threads = int(min((place["CPU"] for place in resources), default=1))
    if on_gpu:
        gpus = int(sum(place.get("GPU", 0) for place in resources))
        return max(1, gpus), {"num_gpus": 1, "num_cpus": 1}, threads
    return max(1, len(resources)), {"num_cpus": threads}, threads
