"""Spreads computing keys and filling an index over a Ray cluster; this machine writes in order."""

from __future__ import annotations

import itertools
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
from knn_logits.errors import MismatchError
from knn_logits.index import plain_arrays
from knn_logits.index.backend import Fill
from knn_logits.index.faiss_backend import FaissIndex
from knn_logits.index.faiss_library import inverted_file, openmp_threads
from knn_logits.metrics import Metric
from knn_logits.ray.connection import connect, machines
from knn_logits.ray.workers import Workers

logger = logging.getLogger(__name__)

# A worker shows with so many keys that it puts them where this machine does. A share of them may
# come into other lists, where a worker rounds in another way.
_SAMPLE, _OTHER_LISTS = 256, 0.1


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


def spread_keys(address: str, canary: Mapping[str, Array]) -> Callable[..., Iterator[Array]]:
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
        with _workers(ray, KeyWorker, resources, count, *shared) as workers:
            for number, keys in enumerate(workers.results(pieces())):
                advance(len(keys))
                yield keys[surplus[number] :]

    return compute


class FillWorker:
    """Finds the lists and the codes of keys on one machine, for a trained index without keys."""

    def __init__(
        self,
        trained: Mapping[str, Array],
        form: tuple[str, int, Metric],  # factory, dim, metric
        threads: int,
        sample: Array,  # some keys
        expected: Mapping[str, Array],  # what the machine with the command makes of them
    ) -> None:
        self.trained, self.form, self.threads = trained, form, threads
        self.sample, self.expected = sample, expected

    def ready(self) -> bool:
        """Whether the sample's lists and codes are those of the machine with the command."""
        arrays = self.work(self.sample)
        if np.mean(_list_of_keys(arrays) != _list_of_keys(self.expected)) > _OTHER_LISTS:
            raise MismatchError(
                "a worker assigns keys to different lists than this machine: install the same "
                "version of FAISS on all machines of the cluster"
            )
        return all(np.array_equal(arrays[name], self.expected[name]) for name in arrays)

    def work(self, keys: Array) -> dict[str, Array]:
        """Returns `sizes`, `ids` and `codes` of the lists over some keys, numbered from 0."""
        index = plain_arrays.from_arrays(self.trained, *self.form, size=0)
        with openmp_threads(self.threads):
            index.add(keys)
        arrays = plain_arrays.to_arrays(index)
        return {name: arrays[name] for name in ("sizes", "ids", "codes")}


def _list_of_keys(arrays: Mapping[str, Array]) -> Array:
    """The list of each key, int64 [keys], in the keys' order."""
    lists = np.repeat(np.arange(len(arrays["sizes"])), arrays["sizes"])
    return np.asarray(lists[np.argsort(arrays["ids"])])


def spread_filling(address: str, dtype: str) -> Fill:
    """Returns what adds all keys, which are sent as `dtype`, to a trained index on a cluster."""
    ray = connect(address)

    def fill(index: FaissIndex, factory: str, batches: Iterable[Array]) -> None:
        if not plain_arrays.has_plain_form(index.raw) or inverted_file(index.raw) is None:
            logger.warning(
                "the index %s has no inverted lists to distribute, so it is filled on this machine",
                factory,
            )
            for batch in batches:
                index.add(batch)
            return
        keys = iter(batches)
        first = next(keys)
        sample = first[:_SAMPLE]
        count, resources, threads = _places(ray, on_gpu=False)
        form = (factory, index.dim, index.metric)
        shared = (plain_arrays.to_arrays(index), form, threads, sample)
        expected = FillWorker(*shared, {}).work(sample)
        pieces = (batch.astype(dtype, copy=False) for batch in itertools.chain([first], keys))
        with _workers(ray, FillWorker, resources, count, *shared, expected) as workers:
            for arrays in workers.results(pieces):
                plain_arrays.append(index, arrays)

    return fill


def _places(ray: Any, on_gpu: bool) -> tuple[int, dict[str, float], int]:
    """The number of workers, what each needs, and its CPU threads: one a GPU, or one a machine."""
    resources = [machine["Resources"] for machine in machines(ray)]
    threads = int(min((place["CPU"] for place in resources), default=1))
    if on_gpu:
        gpus = int(sum(place.get("GPU", 0) for place in resources))
        return max(1, gpus), {"num_gpus": 1, "num_cpus": 1}, threads
    return max(1, len(resources)), {"num_cpus": threads}, threads


def _workers(
    ray: Any, kind: type, resources: Mapping[str, float], count: int, *shared: Any
) -> Workers:
    """Actors of a class, to each of which the shared arguments are sent once a machine."""
    worker = ray.remote(max_restarts=0, scheduling_strategy="SPREAD", **resources)(kind)
    references = [ray.put(value) for value in shared]
    return Workers(ray, lambda: worker.remote(*references), count)
