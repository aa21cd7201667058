"""A build by several processes that torchrun has started: each rank writes its own shards of keys.

Rank 0 does everything that one process does, apart from the keys of the other ranks. They wait for
what it sends: the work, and at the end whether the build is done. All ranks see one folder. They
work in rounds: each takes some shards that follow one another, and rank 0 records the files of a
round when all of them are there. So a build that is killed loses a round at most.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.steps import KeyPlan
from knn_logits.engine.compatibility import (
    CANARY_KEYS,
    CANARY_TOKENS,
    SAME,
    canary_keys,
    relative_error,
)
from knn_logits.engine.forward import evaluating
from knn_logits.engine.keys import Sources, compute_keys
from knn_logits.engine.windows import plan
from knn_logits.errors import ConfigError, DatastoreError, KNNLogitsError, MismatchError
from knn_logits.progress import Progress
from knn_logits.store import layout
from knn_logits.store.documents import Contexts
from knn_logits.store.files import write_array
from knn_logits.store.job import Job
from knn_logits.store.reading import map_array, sha256
from knn_logits.store.writer import TokenWriter

logger = logging.getLogger(__name__)

# A rank waits for the others as long as the longest build takes. torchrun ends all ranks when one
# of them fails.
_LONGEST = timedelta(days=30)
# A rank computes the beginning of a group of windows once more where its shards begin inside of
# one. In a round of so many bytes that is a small part of the work.
_ROUND_BYTES = 1 << 30


@dataclass(frozen=True)
class KeyWork:
    """The keys that are to be computed, as rank 0 knows them.

    Attributes:
        folder: The folder of the datastore.
        generation: The number that the names of the job's files contain.
        tokens: Number of tokens of the text.
        tokens_sha256: The digest of the file of tokens.
        first: int64 [contexts], the first token of each context.
        length: int64 [contexts], the tokens of each context.
        dim: Length of a key.
        entries: Number of keys.
        rows: Number of keys of a shard; the last one may have fewer.
        written: Number of keys that an earlier run has written.
        written_shards: Number of shards that hold these.
        canary_tokens: The fixed text, int32.
        canary_keys: Its keys on rank 0.
        sources: What an encoder reads for each context; None for a causal model.
    """

    folder: Path
    generation: int
    tokens: int
    tokens_sha256: str
    first: Array
    length: Array
    dim: int
    entries: int
    rows: int
    written: int
    written_shards: int
    canary_tokens: Array
    canary_keys: Array
    sources: list[str] | None

    @property
    def shards(self) -> int:
        """Number of shards that are to be written."""
        return -(-(self.entries - self.written) // self.rows)

    def entries_of(self, shard: int) -> tuple[int, int]:
        """The first entry of a shard that is to be written, and the one after its last."""
        first = self.written + shard * self.rows
        return first, min(self.entries, first + self.rows)

    def path(self, name: layout.Kind, shard: int | None = None) -> Path:
        """The path of a file of the build; shards count from those that are written."""
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
class Ended:
    """Rank 0 is done, or failed with an error."""

    error: BaseException | None = None


@dataclass
class Ranks:
    """The processes that build together.

    Attributes:
        rank: The number of this process.
        world: Number of processes.
    """

    rank: int
    world: int
    # Whether the others need not, or cannot, be told by rank 0 that the build has ended.
    _told: bool = field(default=False, repr=False)

    @classmethod
    def joined(cls) -> Ranks:
        """Joins the processes that torchrun has started.

        Raises:
            ConfigError: when this process was not started by torchrun.
        """
        import torch.distributed as dist

        if not started_by_torchrun():
            raise ConfigError(
                "this process was not started by torchrun: start it with `torchrun "
                "--nproc-per-node 2 -m knn_logits build ...`, or leave torchrun=True out"
            )
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=_LONGEST)
        return cls(dist.get_rank(), dist.get_world_size())

    def send(self, content: KeyWork | Ended) -> None:
        """Sends something to all other ranks, from rank 0."""
        import torch.distributed as dist

        self._told = isinstance(content, Ended)
        dist.broadcast_object_list([content], src=0)

    def received(self) -> KeyWork | Ended:
        """Waits for what rank 0 sends."""
        import torch.distributed as dist

        content: list[Any] = [None]
        dist.broadcast_object_list(content, src=0)
        found: KeyWork | Ended = content[0]
        return found

    def all_of(self, own: Any) -> list[Any]:
        """What each rank says, in their order."""
        import torch.distributed as dist

        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, own)
        return found

    def tell(self, error: BaseException | None) -> None:
        """Tells the other ranks how the build ended, so that none of them waits for ever."""
        if error is None or isinstance(error, KNNLogitsError):
            content = Ended(error)
        else:
            content = Ended(
                DatastoreError("rank 0 of the build has ended: run the same command again")
            )
        if not self._told:
            # The other ranks may have ended before this one.
            with suppress(RuntimeError):
                self.send(content)

    def follow(self, model: nn.Module, keys: KeyPlan) -> None:
        """Does what rank 0 asks for, until the build is done.

        Raises:
            KNNLogitsError: when the build has failed on any rank.
        """
        while isinstance(content := self.received(), KeyWork):
            for _ in self.write(model, keys, content):
                pass
        if content.error is not None:
            raise content.error

    def write(
        self,
        model: nn.Module,
        keys: KeyPlan,
        work: KeyWork,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Iterator[tuple[list[int], bool]]:
        """Writes this rank's shards of each round.

        Yields:
            After each round the shards that all ranks have written in it, and whether all of them
            compute the same keys to the last bit.

        Raises:
            KNNLogitsError: when a rank has failed, with its error.
        """
        same, failed = True, None
        # In a round all ranks speak at once. Where one of them ends, torchrun ends the others.
        self._told = True
        try:
            same = _checked(model, keys, work)
        except KNNLogitsError as error:
            failed = error
        row_bytes = work.dim * np.dtype(keys.dtype).itemsize
        for shards in work.rounds(self.world, row_bytes):
            if failed is None:
                try:
                    _write(model, keys, work, shards[self.rank], advance)
                except KNNLogitsError as error:
                    failed = error
            said = self.all_of((failed, same))
            for theirs, _ in said:
                if theirs is not None:
                    # Each rank raises it.
                    raise theirs
            yield [one for block in shards for one in block], all(equal for _, equal in said)
        self._told = False


def write_keys_together(
    ranks: Ranks,
    job: Job,
    model: nn.Module,
    keys: KeyPlan,
    text: TokenWriter,
    contexts: Contexts,
    canary: Mapping[str, Array],
    *,
    shard_bytes: int,
    progress: Progress,
) -> None:
    """Writes the keys that an earlier run did not write, on rank 0, together with all ranks.

    The arguments are those of `steps.write_keys`, the ranks, and the canary's arrays.
    """
    tokens = job.file("tokens")
    assert tokens is not None
    dim = canary[CANARY_KEYS].shape[1]
    row_bytes = dim * np.dtype(keys.dtype).itemsize
    work = KeyWork(
        folder=job.folder,
        generation=job.generation,
        tokens=text.tokens,
        tokens_sha256=tokens.sha256,
        first=contexts.first,
        length=contexts.length,
        dim=dim,
        entries=contexts.entries,
        rows=max(1, shard_bytes // row_bytes),
        written=sum(one.shape[0] for one in job.shards if one.shape),
        written_shards=len(job.shards),
        canary_tokens=canary[CANARY_TOKENS],
        canary_keys=canary[CANARY_KEYS],
        sources=text.sources(range(text.documents)) if keys.pairs is not None else None,
    )
    done = computed = work.written
    told = False
    progress("keys", done, work.entries)

    def advance(own: int) -> None:
        # The other ranks are about as far as this one.
        nonlocal computed
        computed = min(work.entries, computed + own * ranks.world)
        progress("keys", computed, work.entries)

    ranks.send(work)
    for shards, same in ranks.write(model, keys, work, advance):
        for shard in shards:
            job.note(work.path("keys", shard))
            first, last = work.entries_of(shard)
            done += last - first
        computed = done
        progress("keys", done, work.entries)
        if not same and not told:
            told = True
            logger.warning(
                "a rank has another kind of processor and rounds in another way, so the files "
                "differ in the last bits from those of one process"
            )


@contextmanager
def leading(ranks: Ranks | None) -> Iterator[None]:
    """Lets rank 0 build, and tells the other ranks how that ended; None stands for no ranks."""
    if ranks is None:
        yield
        return
    try:
        yield
    except BaseException as error:
        ranks.tell(error)
        raise
    ranks.tell(None)


def started_by_torchrun() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "WORLD_SIZE" in os.environ


def _checked(model: nn.Module, keys: KeyPlan, work: KeyWork) -> bool:
    """Whether this rank computes the keys of rank 0 to the last bit.

    Raises:
        MismatchError: when it computes other keys.
        DatastoreError: when it does not see the files of rank 0.
    """
    path = work.path("tokens")
    try:
        seen = sha256(path)
    except OSError:
        seen = ""
    if seen != work.tokens_sha256:
        raise DatastoreError(
            f"a rank does not see the files that rank 0 writes to {work.folder}: give a folder "
            "that all machines share"
        )
    own = canary_keys(model, keys.location, work.canary_tokens)
    if relative_error(own, work.canary_keys) > SAME:
        raise MismatchError(
            "a rank computes other keys than rank 0: give all of them the same model, and install "
            "the same versions of torch and transformers"
        )
    return bool(np.array_equal(own, work.canary_keys))


def _write(
    model: nn.Module,
    keys: KeyPlan,
    work: KeyWork,
    shards: range,
    advance: Callable[[int], None],
) -> None:
    """Computes and writes some shards that follow one another."""
    if not shards:
        return
    tokens = map_array(work.path("tokens"), "int32", (work.tokens,))
    begin, end = work.entries_of(shards[0])[0], work.entries_of(shards[-1])[1]
    windows = list(plan(work.first, work.length, keys.windows.window, keys.windows.stride))
    pairs, texts = keys.pairs, work.sources
    sources: Sources | None = None
    if pairs is not None and texts is not None:
        sources = lambda numbers: pairs.sources([texts[one] for one in numbers])  # noqa: E731
    with evaluating(model):
        parts = compute_keys(
            model,
            keys.location,
            np.asarray(tokens),
            windows,
            dim=work.dim,
            dtype=keys.dtype,
            batch_tokens=keys.batch_tokens,
            first_entry=begin,
            sources=sources,
            advance=advance,
        )
        held, computed = np.empty((0, work.dim), keys.dtype), begin
        for shard in shards:
            first, last = work.entries_of(shard)
            rows = last - first
            while len(held) < rows:
                part = next(parts)[: end - computed]
                computed += len(part)
                held = np.concatenate([held, part])
            write_array(work.path("keys", shard), held[:rows])
            held = held[rows:]
