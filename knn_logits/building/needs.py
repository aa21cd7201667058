"""What a datastore needs with one kind of index: disk, memory, time, and which machine would do."""

from __future__ import annotations

from dataclasses import dataclass

from knn_logits.building import sizes, timing
from knn_logits.building.indexing import check_index
from knn_logits.building.sizes import Extent
from knn_logits.errors import ConfigError
from knn_logits.index.choice import CODES, choose_lists
from knn_logits.settings.config import IndexConfig

# The usual number of neighbors where text is written; queries are timed alone, and so many at once.
_K, _BATCH = 64, 8


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
    """How fast this machine is with a model, and the memory that the model takes."""

    # Seconds to compute all keys under the machine's present load; None without a model.
    keys: float | None
    slowed: float  # the factor, at least 1, by which the present load slows work down
    token: float  # seconds of a forward pass for each token, on an idle machine
    head: float  # the factor by which the head makes a forward pass longer
    weights: int  # bytes of the model's weights; `program` includes them
    program: int
    batch: int = 0  # bytes that the forward pass of a batch takes on top of the program


@dataclass(frozen=True)
class Request:
    """What an estimate is of, apart from the text and the speed."""

    index: IndexConfig
    k: int | None
    chooses: bool
    threads: int | None
    compare: bool


def needs_by_kind(extent: Extent, speed: Speed, request: Request) -> tuple[Need, ...]:
    """Estimates a datastore with the index of its build first, and with other kinds on request."""
    index = request.index
    needs = [_need(extent, speed, request, index, chosen=True)]
    for kind in usual_kinds(extent.entries, extent.dim) if request.compare else []:
        if kind == needs[0].index:
            continue
        other = IndexConfig(kind, index.metric, nprobe=index.nprobe, seed=index.seed)
        try:
            needs.append(_need(extent, speed, request, other, chosen=False))
        except ConfigError:  # it learns from more keys than there are
            continue
    return tuple(needs)


def usual_kinds(entries: int, dim: int) -> list[str]:
    """The kinds of index that are worth comparing for so many keys."""
    lists = choose_lists(entries)
    codes = next((codes for codes in CODES if dim % codes == 0), None)
    product = [] if codes is None else [f"IVF{lists},PQ{codes}"]
    return ["exact", f"IVF{lists},SQ8", *product, f"IVF{lists},RaBitQ"]


def _need(
    extent: Extent, speed: Speed, request: Request, config: IndexConfig, *, chosen: bool
) -> Need:
    entries, dim, metric = extent.entries, extent.dim, extent.metric
    check_index(config, dim, metric, entries)
    factory = sizes.resolved(config, entries, dim)
    size = sizes.store_bytes(extent, config)
    seconds = None
    if speed.keys is not None:
        idle = timing.index_seconds(config, entries, dim, metric, request.threads)
        idle += timing.recall_seconds(entries, dim, metric, factory)
        if request.chooses:
            idle += timing.calibration_seconds(entries, speed.token, speed.head, request.k)
        seconds = speed.keys + speed.slowed * idle + timing.writing_seconds(size)
    k, nprobe = min(request.k or _K, entries), config.nprobe or timing.usual_nprobe(factory)
    queries = timing.query_seconds(
        factory, entries, dim, metric, k=k, rows=(1, _BATCH), nprobe=nprobe
    )
    single, batch = [1e3 * spent for spent in queries] if queries else (None, None)
    on_gpu = sizes.gpu_bytes(extent, factory)
    memory = speed.program + sizes.opening_bytes(extent, factory)
    building = sizes.building_bytes(extent, factory, config.train_size)
    building += speed.program + speed.batch
    return Need(
        index=factory,
        chosen=chosen,
        nprobe=nprobe,
        bytes=size,
        memory=memory,
        building_memory=building,
        gpu_memory=None if on_gpu is None else on_gpu + speed.weights,
        seconds=seconds,
        milliseconds=single,
        batch_milliseconds=batch,
        machine=sizes.machine_for(max(memory, building), size),
    )
