"""What a datastore needs with one kind of index: disk, memory, time, and which machine would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from knn_logits.building.costs import (
    calibration_seconds,
    index_seconds,
    recall_seconds,
    writing_seconds,
)
from knn_logits.building.hardware import machine_for
from knn_logits.building.indexing import check_index
from knn_logits.building.query_costs import query_seconds, usual_nprobe
from knn_logits.building.sizes import (
    Extent,
    building_bytes,
    gpu_bytes,
    opening_bytes,
    resolved,
    store_bytes,
)
from knn_logits.errors import ConfigError
from knn_logits.index.choice import CODES, choose_lists
from knn_logits.settings.config import IndexConfig

# Queries are timed one at a time, and so many at once.
BATCH = 8
# The usual number of neighbors where text is written.
_K = 64


@dataclass(frozen=True)
class Need:
    """What a datastore with one kind of index needs.

    Attributes:
        index: The factory string, or "exact".
        chosen: Whether a build with the same settings makes this index.
        nprobe: The number of inverted lists that queries are timed with; None where the index has
            none.
        bytes: Size of the datastore's folder.
        memory: The most memory of a process that searches, the model and the program included.
        building_memory: The same of the process that builds.
        gpu_memory: Memory of a GPU that holds the model and the index; None where FAISS has no
            form of the index for a GPU.
        seconds: Time of the build on this machine; None where there is no model to time.
        milliseconds: Time of a search for one query.
        batch_milliseconds: Time of a search for 8 queries at once. Both are None for a kind of
            index that is not measured.
        machine: The smallest usual machine that would do.
    """

    index: str
    chosen: bool
    nprobe: int | None
    bytes: int
    memory: int
    building_memory: int
    gpu_memory: int | None
    seconds: float | None
    milliseconds: float | None
    batch_milliseconds: float | None
    machine: str


@dataclass(frozen=True)
class Speed:
    """How fast this machine is with a model.

    Attributes:
        keys: Seconds to compute all keys under the machine's present load; None where no model is
            known.
        slowed: The factor, at least 1, by which the present load slows work down.
        token: Seconds of a forward pass for each token, on an idle machine.
        head: The factor by which the head makes a forward pass longer.
        weights: Memory of the model's weights.
        program: Memory of the program, the weights included.
        batch: Memory that the forward pass of a build's batch takes beside that.
    """

    keys: float | None
    slowed: float
    token: float
    head: float
    weights: int
    program: int
    batch: int = 0


def usual_kinds(entries: int, dim: int) -> list[str]:
    """The kinds of index that are worth comparing for so many keys."""
    lists = choose_lists(entries)
    codes = next((one for one in CODES if dim % one == 0), None)
    kinds = ["exact", f"IVF{lists},SQ8", f"IVF{lists},RaBitQ"]
    if codes is not None:
        kinds.insert(2, f"IVF{lists},PQ{codes}")
    return kinds


def need(
    extent: Extent,
    speed: Speed,
    config: IndexConfig,
    *,
    k: int | None = None,
    calibrate: bool = True,
    threads: int | None = None,
    chosen: bool = True,
) -> Need:
    """Estimates what a datastore needs with one kind of index.

    Args:
        extent: How large the datastore is.
        speed: How fast this machine computes keys.
        config: The kind of index.
        k: Neighbors of each query, if the user gave it.
        calibrate: Whether the build chooses settings.
        threads: OpenMP threads of the index while it is built.
        chosen: Whether this is the index that the build makes.

    Raises:
        ConfigError: when the index cannot be made for so many entries.
    """
    check_index(config, extent.dim, extent.metric, extent.entries)
    factory = resolved(config, extent.entries, extent.dim)
    size = store_bytes(extent, config)
    seconds = None
    if speed.keys is not None:
        rest = index_seconds(config, extent.entries, extent.dim, extent.metric, threads)
        rest += recall_seconds(extent.entries, extent.dim, extent.metric, factory)
        if calibrate:
            rest += calibration_seconds(extent.entries, extent.metric, speed.token, speed.head, k)
        seconds = speed.keys + speed.slowed * rest + writing_seconds(size)
    nprobe = config.nprobe or (usual_nprobe(factory) if "IVF" in factory else None)
    timed = query_seconds(
        factory,
        extent.entries,
        extent.dim,
        extent.metric,
        k=min(k or _K, extent.entries),
        rows=(1, BATCH),
        nprobe=nprobe,
    )
    one, several = [1e3 * seconds for seconds in timed] if timed else (None, None)
    on_gpu = gpu_bytes(extent, factory)
    memory = speed.program + opening_bytes(extent, factory)
    building = speed.program + speed.batch + building_bytes(extent, factory, config.train_size)
    return Need(
        index=factory,
        chosen=chosen,
        nprobe=nprobe,
        bytes=size,
        memory=memory,
        building_memory=building,
        gpu_memory=None if on_gpu is None else on_gpu + speed.weights,
        seconds=seconds,
        milliseconds=one,
        batch_milliseconds=several,
        machine=machine_for(max(memory, building), size),
    )


def needs(
    extent: Extent,
    speed: Speed,
    config: IndexConfig,
    kinds: Sequence[str],
    *,
    k: int | None = None,
    calibrate: bool = True,
    threads: int | None = None,
) -> list[Need]:
    """Estimates what a datastore needs with each of several kinds of index.

    Args:
        extent: How large the datastore is.
        speed: How fast this machine computes keys.
        config: The index of the build, which comes first.
        kinds: Factory strings of others. Those that need more keys are left out.
        k: Neighbors of each query, if the user gave it.
        calibrate: Whether the build chooses settings.
        threads: OpenMP threads of the index while it is built.

    Raises:
        ConfigError: when the index of the build cannot be made for so many entries.
    """
    given = {"k": k, "calibrate": calibrate, "threads": threads}
    found = [need(extent, speed, config, **given)]  # type: ignore[arg-type]
    for kind in kinds:
        if kind == found[0].index:
            continue
        other = IndexConfig(kind, config.metric, nprobe=config.nprobe, seed=config.seed)
        try:
            found.append(need(extent, speed, other, chosen=False, **given))  # type: ignore[arg-type]
        except ConfigError:
            continue
    return found
