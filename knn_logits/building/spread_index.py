"""Fills an index on the machines of a Ray cluster.

The index is trained on the machine that was given the command. After that, the list of a key and
its code depend on that key alone. So a worker is given a batch of keys, and sends back the lists
of a small index. They are appended in the batches' order, which gives the bytes of one machine.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import MismatchError
from knn_logits.index import plain
from knn_logits.index.faiss_backend import FaissIndex
from knn_logits.index.faiss_library import inverted_file, openmp_threads
from knn_logits.index.opening import Fill
from knn_logits.ray.connection import connect, machines
from knn_logits.ray.workers import Workers
from knn_logits.settings.config import Metric

logger = logging.getLogger(__name__)

# A worker shows with so many keys that it puts them where this machine does.
_SAMPLE = 256
# The share of the sample that may come into other lists, where a worker rounds in another way.
_OTHER_LISTS = 0.1


@dataclass(frozen=True)
class Filling:
    """What all workers have in common.

    Attributes:
        factory: The index's factory string.
        dim: Length of a key.
        metric: How keys are compared.
        trained: The arrays of the trained index, without keys.
        threads: CPU threads of a worker.
        sample: Some keys, [rows, dim].
    """

    factory: str
    dim: int
    metric: Metric
    trained: Mapping[str, Array]
    threads: int
    sample: Array


class IndexWorker:
    """Finds the lists and the codes of keys on one machine.

    Args:
        filling: What all workers have in common.
        expected: What `work` returns for the sample on the machine that was given the command.
    """

    def __init__(self, filling: Filling, expected: Mapping[str, Array]) -> None:
        self.filling, self.expected = filling, expected

    def ready(self) -> bool:
        """Compares the sample's lists and codes with those of the machine with the command.

        Returns:
            Whether they are equal to the last bit.

        Raises:
            MismatchError: when many keys come into other lists.
        """
        own = self.work(self.filling.sample)
        if np.mean(lists_of(own) != lists_of(self.expected)) > _OTHER_LISTS:
            raise MismatchError(
                "a worker puts keys into other lists than this machine: install the same version "
                "of FAISS on all machines of the cluster"
            )
        return all(np.array_equal(own[name], self.expected[name]) for name in own)

    def work(self, keys: Array) -> dict[str, Array]:
        """Returns `sizes`, `ids` and `codes` of the lists over some keys, numbered from 0."""
        filling = self.filling
        index = plain.from_arrays(
            filling.trained, filling.factory, filling.dim, filling.metric, size=0
        )
        with openmp_threads(filling.threads):
            index.add(keys)
        arrays = plain.to_arrays(index)
        return {name: arrays[name] for name in ("sizes", "ids", "codes")}


def lists_of(arrays: Mapping[str, Array]) -> Array:
    """The list of each key, int64 [keys], in the keys' order."""
    lists = np.repeat(np.arange(len(arrays["sizes"])), arrays["sizes"])
    found: Array = lists[np.argsort(arrays["ids"])]
    return found


def spread_filling(address: str, dtype: str) -> Fill:
    """Returns what adds all keys to a trained index, where a cluster does the work.

    Args:
        address: The cluster's address, see `machines.connection.connect`.
        dtype: The precision of the datastore's keys, in which they are sent.

    Raises:
        MissingDependencyError: when Ray is not installed.
        UnreachableError: when there is no cluster at the address.
    """
    ray = connect(address)

    def fill(index: FaissIndex, factory: str, batches: Iterable[Array]) -> None:
        if not plain.has_plain_form(index.raw) or inverted_file(index.raw) is None:
            logger.warning(
                "the index %s has no lists that other machines could fill, so it is filled here",
                factory,
            )
            for batch in batches:
                index.add(batch)
            return
        keys = iter(batches)
        first = next(keys)
        places = [one["Resources"] for one in machines(ray)]
        cpus = int(min((one["CPU"] for one in places), default=1))
        trained = plain.to_arrays(index)
        sample = first[:_SAMPLE]
        filling = Filling(factory, index.dim, index.metric, trained, cpus, sample)
        shared = ray.put(filling), ray.put(IndexWorker(filling, {}).work(sample))
        worker: Any = ray.remote(max_restarts=0, scheduling_strategy="SPREAD", num_cpus=cpus)(
            IndexWorker
        )
        pieces: Iterator[Array] = (
            one.astype(dtype, copy=False) for one in itertools.chain([first], keys)
        )
        with Workers(ray, lambda: worker.remote(*shared), max(1, len(places))) as workers:
            for arrays in workers.results(pieces):
                plain.append(index, arrays)

    return fill
