"""Bytes of a datastore, and how long a build and a query take on this machine, from short runs."""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from mmap import PAGESIZE
from pathlib import Path

import numpy as np
import torch
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.calibration import OVERSAMPLING, sample_size
from knn_logits.building.planning import KeyPlan
from knn_logits.engine.forward import evaluating, input_device, key_states, windows_batch
from knn_logits.engine.keys import grouped
from knn_logits.engine.windows import TextWindow, batches, resolve
from knn_logits.index.backend import Backend
from knn_logits.index.choice import available_memory
from knn_logits.index.exact import ExactIndex
from knn_logits.index.speed import fastest, random_vectors, sample_rows
from knn_logits.measure.likelihood import LMBDAS, Grid, GridLikelihood, temperatures_around
from knn_logits.metrics import Metric
from knn_logits.search.neighbors import Neighbors, powers_up_to
from knn_logits.settings.config import DEFAULT_K, FEWEST_CALIBRATED, whole_number
from knn_logits.settings.passes import WindowConfig
from knn_logits.store.suffixes import suffix_order
from knn_logits.store.writer import SHARD_BYTES

# Of a file of arrays, and of the manifest.
_HEADER, _MANIFEST = 128, 2300
_PROBES, _PROBE_NEIGHBORS = 8, 8

_UNITS = ((10**12, "TB"), (10**9, "GB"))
# Memory of machines and of GPUs that are sold or rented, in GiB.
_MACHINES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_GPUS = (16, 24, 48, 80, 141)
# An index that is spread over machines takes machines of these sizes.
_MACHINE_OF_A_CLUSTER, _GPU_OF_A_CLUSTER = 512, 80
# A share of the memory stays free for the system and for other programs.
_SPARE = 0.1


@dataclass(frozen=True)
class Extent:
    """How large a datastore is, whatever its index."""

    entries: int
    tokens: int
    documents: int
    dim: int
    dtype: str
    metric: Metric
    table_bytes: int  # size of the table of documents
    canary: int = 0  # number of tokens of the canary's text


def store_bytes(extent: Extent, kind: Backend, *, native: bool) -> int:
    """Size of a datastore's folder, without a gate or clusters, which are made later."""
    keys = extent.entries * extent.dim * np.dtype(extent.dtype).itemsize
    rows, columns = min(_PROBES, extent.entries), min(_PROBE_NEIGHBORS, extent.entries)
    probe = 4 * rows * extent.dim + 12 * rows * columns
    index = kind.file_bytes(extent.entries, native=native)
    return int(keys + _HEADER * (1 + keys // SHARD_BYTES) + index + probe + _text_bytes(extent))


def text_store_bytes(extent: Extent) -> int:
    """Size of the folder of a datastore without keys, which has a suffix index of its text."""
    return 4 * extent.entries + _HEADER + _text_bytes(extent)


def _text_bytes(extent: Extent) -> int:
    canary = 4 * extent.canary * (extent.dim + 1)
    return 4 * extent.tokens + extent.table_bytes + canary + 4 * _HEADER + _MANIFEST


def process_bytes() -> int:
    """Memory that this process holds now; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGESIZE
    return 0


def machine_for(memory: int, disk: int) -> str:
    """Names the smallest usual machine, or the number of machines that share an index."""
    unit, name = next(((n, name) for n, name in _UNITS if disk >= n), (max(disk, 1), "GB"))
    digits = math.ceil(10 * disk / unit) / 10
    room = f"{digits:g} {name}" if digits < 10 else f"{math.ceil(disk / unit):,} {name}"
    size, count = _smallest(memory, _MACHINES, _MACHINE_OF_A_CLUSTER)
    if count == 1:
        return f"{size} GB of memory, {room} of disk"
    return f"{count} machines of {size} GB, {room} of disk in all"


def gpu_for(memory: int) -> str:
    """Names the smallest usual GPU, or the number of them that share an index."""
    size, count = _smallest(memory, _GPUS, _GPU_OF_A_CLUSTER)
    return f"{size} GB" if count == 1 else f"{count} × {size} GB"


def _smallest(memory: int, sizes: tuple[int, ...], shared: int) -> tuple[int, int]:
    """The smallest size that is enough, and how many; more than the largest is shared."""
    gigabytes = memory * (1.0 + _SPARE) / (1 << 30)
    size = next((size for size in sizes if gigabytes <= size), None)
    return (shared, math.ceil(gigabytes / shared)) if size is None else (size, 1)


def this_machine(folder: Path) -> tuple[int, int]:
    """Bytes of this machine's memory, and free on the disk of a folder that need not exist."""
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return available_memory(0), shutil.disk_usage(folder).free


def is_enough(memory: int, disk: int, machine: tuple[int, int]) -> bool:
    """Whether a machine, as `this_machine` describes it, has so many bytes of memory and disk."""
    return memory * (1.0 + _SPARE) <= machine[0] and disk <= machine[1]


# Forward passes are timed for so many seconds, and so many unless each is slow, after a short one.
_BUDGET, _FEWEST_BATCHES, _OPENING = 2.0, 2, 64
_QUERIES, _ROWS = 256, 64
# The suffix index is timed on so many tokens.
_SORTED = 1 << 16
# Bytes a second: hashing, then writing.
WRITTEN = 400e6
# A layer of a transformer has so many weights for each square of its width: four in its attention,
# and eight in a feed-forward network of four times the width. They are kept in half precision.
_WEIGHTS, _WEIGHT_BYTES = 12, 2
# The matrix product that stands for a model, and how much longer a head makes a forward pass.
_MODEL_ROWS, _WIDEST, _HEAD = 1024, 4096, 2.0


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


def tokens_read(tokens: int, window: int, stride: int) -> int:
    """Tokens that the model reads, since each stands in more than one window."""
    return int(tokens * max(1.0, window / stride))


def measured_speed(
    model: nn.Module,
    keys: KeyPlan,
    tokens: Array,
    windows: Sequence[TextWindow],
    dim: int,
    scale: float,
    total: int,
) -> Speed:
    """Times the keys of some windows, which stand for `scale` times as many."""
    device, size, program = input_device(model), keys.batch_tokens, process_bytes()
    groups = list(grouped(windows, dim=dim, dtype=keys.dtype, batch_tokens=size))
    chance = random.Random(0)
    drawn = chance.sample(groups, min(3, len(groups)))
    sample = [batch for group in drawn for batch in batches(group, size)]
    chance.shuffle(sample)
    read, spent, worked = 0, 0.0, 0.0
    with evaluating(model):
        # The very first pass takes longer, and may be short.
        first = sample[0][0]
        opening = replace(first, size=min(first.size, _OPENING), skip=0)
        for number, batch in enumerate([[opening], *sample]):
            moved = [
                replace(window, start=window.start % max(1, len(tokens) - window.size))
                for window in batch
            ]
            began, began_work = time.perf_counter(), time.process_time()
            states = key_states(model, keys.location, windows_batch(tokens, moved, device))
            states.to(getattr(torch, keys.dtype)).cpu()
            if number == 0:
                continue
            spent += time.perf_counter() - began
            worked += time.process_time() - began_work
            read += sum(window.size for window in batch)
            if spent > _BUDGET and (number >= _FEWEST_BATCHES or spent > 2 * _BUDGET):
                break
    slowed = 1.0
    if device.type == "cpu" and worked > 0.0:
        slowed = max(1.0, spent * torch.get_num_threads() / worked)
    seconds = scale * spent * sum(window.size for window in windows) / max(1, read)
    # The head makes a pass longer by its share of the weights.
    weights = list(model.parameters())
    head = getattr(model, "get_output_embeddings", lambda: None)()
    in_head = int(head.weight.numel()) if head is not None else dim
    in_body = sum(part.numel() for part in weights) - in_head
    return Speed(
        keys=seconds,
        slowed=slowed,
        token=seconds / slowed / max(1, total),
        head=_HEAD + in_head / max(1, in_body),
        weights=sum(part.numel() * part.element_size() for part in weights),
        program=program,
        batch=max(0, process_bytes() - program),
    )


def supposed_speed(tokens: int, dim: int, layers: int | None, window: WindowConfig | None) -> Speed:
    """The speed of a model of so many layers, from a product of matrices."""
    program = process_bytes()
    if layers is None:
        return Speed(None, 1.0, 0.0, _HEAD, 0, program)
    size, stride = resolve(window or WindowConfig(), None)
    weights = _WEIGHTS * whole_number("layers", layers, 1) * dim * dim
    width = min(dim, _WIDEST)
    states, matrix = torch.rand(_MODEL_ROWS, width), torch.rand(width, width)
    # A product of matrices takes one multiplication for each weight and each token.
    token = fastest(lambda: states @ matrix) / (_MODEL_ROWS * width * width) * weights
    seconds, size = token * tokens_read(tokens, size, stride), weights * _WEIGHT_BYTES
    return Speed(seconds, 1.0, token, _HEAD, size, program + size)


def recall_seconds(kind: Backend, entries: int) -> float:
    """Seconds to measure an index's recall, most of them for the exact search."""
    if not kind.approximate or entries < 2:
        return 0.0
    rows = sample_rows(entries, kind.dim)
    exact = _exact_seconds(rows, kind.dim, kind.metric, torch.get_num_threads())
    return 1.2 * exact * entries / rows


@lru_cache(maxsize=16)
def _exact_seconds(rows: int, dim: int, metric: Metric, threads: int) -> float:  # noqa: ARG001
    """Seconds of an exact search among so many keys, measured once for all kinds of index."""
    keys = torch.from_numpy(random_vectors(rows, dim))
    queries = keys[: min(_QUERIES, rows)].clone()
    return fastest(lambda: ExactIndex(keys, metric).search(queries, min(65, rows)))


def calibration_seconds(entries: int, token_seconds: float, head: float, k: int | None) -> float:
    """Seconds to choose the settings for scoring; a head makes a forward pass longer."""
    if entries < FEWEST_CALIBRATED:
        return 0.0
    columns = min(entries, OVERSAMPLING * (k or DEFAULT_K))
    choice = _choice_seconds(columns, k, torch.get_num_threads())
    # The search itself, which sorts out as many candidates.
    search = 2e-4 + 2e-7 * columns
    return sample_size(entries) * (choice + search + token_seconds * head)


@lru_cache(maxsize=16)
def _choice_seconds(columns: int, k: int | None, threads: int) -> float:  # noqa: ARG001
    """Seconds to try all settings on one token, measured once for all kinds of index."""
    ks = (k,) if k else powers_up_to(DEFAULT_K, 64)
    likelihood = GridLikelihood(Grid(ks, temperatures_around(100.0, 10.0), LMBDAS[2:]))
    rows = torch.rand(_ROWS, columns).sort(dim=-1).values * 100.0
    neighbors = Neighbors(torch.zeros(rows.shape, dtype=torch.int64), -rows, (rows * 7).long())
    targets, log_p_lm = torch.zeros(_ROWS, dtype=torch.int64), torch.full((_ROWS,), -3.0)
    return fastest(lambda: likelihood.add(neighbors, targets, log_p_lm)) / _ROWS


def suffix_seconds(tokens: Array, total: int) -> float:
    """Seconds to make the suffix index of a text of so many tokens, from its beginning."""
    start = np.asarray(tokens[:_SORTED])
    first = np.zeros(1, np.int64)
    return fastest(lambda: suffix_order(start, first)) * total / max(1, len(start))
