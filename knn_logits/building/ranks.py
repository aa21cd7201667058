"""A build by the processes of torchrun in one folder: each rank writes its own shards of keys.

Rank 0 does all else. It records the files of a round of shards when all are complete, so a build
that is killed loses a round at most.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.planning import KeyPlan
from knn_logits.building.steps import Steps, computes_canary, keys_from
from knn_logits.engine.compatibility import CANARY_KEYS
from knn_logits.engine.forward import evaluating
from knn_logits.errors import ConfigError, DatastoreError, KNNLogitsError
from knn_logits.progress import counter
from knn_logits.store import layout
from knn_logits.store.entries import Contexts
from knn_logits.store.files import write_array
from knn_logits.store.reading import map_array, sha256
from knn_logits.store.records import FileRecord
from knn_logits.store.writer import TokenWriter, in_shards, shard_rows

logger = logging.getLogger(__name__)

# A rank waits for the others as long as the longest build takes.
_WAITING_TIME = timedelta(days=30)
# A rank computes the beginning of a group of windows once more where its shards begin inside of
# one. In a round of this number of bytes that is a small part of the work.
_ROUND_BYTES = 1 << 30


@dataclass(frozen=True)
class KeyWork:
    """The keys to compute, as rank 0 sends them to all ranks."""

    folder: Path
    generation: int  # the number that the names of the job's files contain
    text: FileRecord  # the file of tokens
    contexts: Contexts
    dim: int
    rows: int  # number of keys of a shard; the last one may have fewer
    written: int  # number of keys that an earlier run has written, in `written_shards` shards
    written_shards: int
    canary: Mapping[str, Array]  # the canary's arrays on rank 0
    sources: list[str] | None  # what an encoder reads for each context; None for a causal model

    @property
    def shards(self) -> int:
        return -(-(self.contexts.entries - self.written) // self.rows)

    def path(self, name: layout.Kind, shard: int | None = None) -> Path:
        number = None if shard is None else self.written_shards + shard
        return self.folder / layout.file_name(name, self.generation, number)

    def rounds(self, world: int, row_bytes: int) -> Iterator[list[range]]:
        """Yields the shards of each rank, round by round."""
        most = max(1, _ROUND_BYTES // (self.rows * row_bytes))
        done = 0
        while done < self.shards:
            each = min(most, -(-(self.shards - done) // world))
            starts = [min(self.shards, done + each * rank) for rank in range(world + 1)]
            yield [range(a, b) for a, b in itertools.pairwise(starts)]
            done = starts[-1]


@dataclass(frozen=True)
class Ranks:
    """The processes that build together: the number of this one, and how many there are.

    Where one of them ends with an error, torchrun ends the others.
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

    def message(self, work: KeyWork | None = None) -> KeyWork | None:
        """Sends work from rank 0, or waits for it on another rank; None ends the build."""
        messages = [work]
        dist.broadcast_object_list(messages, src=0)
        return messages[0]

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def follow(self, model: nn.Module, keys: KeyPlan) -> None:
        """Does the work that rank 0 sends, until the build is done."""
        try:
            while (work := self.message()) is not None:
                for _ in self.write(model, keys, work):
                    pass
        except KNNLogitsError as error:
            logger.error("rank %d: %s", self.rank, error)
            raise

    def write(
        self,
        model: nn.Module,
        keys: KeyPlan,
        work: KeyWork,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Iterator[tuple[list[int], bool]]:
        """Writes this rank's shards, and yields those of all ranks after each round."""
        same = _is_same(model, keys, work)
        row_bytes = work.dim * np.dtype(keys.dtype).itemsize
        for shards in work.rounds(self.world, row_bytes):
            _write(model, keys, work, shards[self.rank], advance)
            yield list(itertools.chain(*shards)), all(self.gather(same))


def write_keys_together(
    ranks: Ranks, steps: Steps, text: TokenWriter, contexts: Contexts, canary: Mapping[str, Array]
) -> None:
    """Does on rank 0 what `Steps.write_keys` does on one process, together with all ranks."""
    job, model, keys = steps.job, steps.model, steps.keys
    tokens = job.file("tokens")
    assert tokens is not None
    dim = canary[CANARY_KEYS].shape[1]
    rows = shard_rows(dim, keys.dtype, steps.shard_bytes)
    job.drop_unfilled(rows)  # each rank begins with a shard of its own
    work = KeyWork(
        folder=job.folder,
        generation=job.generation,
        text=tokens,
        contexts=contexts,
        dim=dim,
        rows=rows,
        written=job.keys,
        written_shards=len(job.shards),
        canary=canary,
        sources=text.sources(range(text.documents)) if keys.pairs is not None else None,
    )
    count = counter(steps.progress, "keys", contexts.entries, work.written)
    ranks.message(work)
    # The other ranks are about as far as this one.
    written = ranks.write(model, keys, work, lambda keys: count(keys * ranks.world))
    for number, (shards, same) in enumerate(written):
        for shard in shards:
            job.note(work.path("keys", shard))
        if not same and number == 0:
            logger.warning(
                "a rank runs on a different CPU or GPU type, which rounds differently: the files "
                "may differ in the last bits from those of a single process"
            )


def started_by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and "WORLD_SIZE" in os.environ


def _is_same(model: nn.Module, keys: KeyPlan, work: KeyWork) -> bool:
    """Whether this rank computes the keys of rank 0 to the last bit."""
    try:
        digest = sha256(work.path("tokens"))
    except OSError:
        digest = ""
    if digest != work.text.sha256:
        raise DatastoreError(
            f"a rank cannot see the files that rank 0 writes to {work.folder}: use a folder "
            "shared by all machines"
        )
    return computes_canary(
        model,
        keys.location,
        work.canary,
        "a rank computes other keys than rank 0: give all of them the same model, and install the "
        "same versions of torch and transformers",
    )


def _write(
    model: nn.Module, keys: KeyPlan, work: KeyWork, shards: range, advance: Callable[[int], None]
) -> None:
    """Computes and writes some shards that follow one another."""
    if not shards:
        return
    tokens = map_array(work.path("tokens"), "int32", work.text.shape or ())
    sources = work.sources or []
    with evaluating(model):
        parts = keys_from(
            model,
            keys,
            np.asarray(tokens),
            work.contexts,
            work.dim,
            (0, work.written + shards[0] * work.rows),
            lambda numbers: [sources[number] for number in numbers],
            advance,
        )
        for shard, rows in zip(shards, in_shards(parts, work.rows), strict=False):
            write_array(work.path("keys", shard), rows)
