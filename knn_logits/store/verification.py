"""Checks whether a datastore's files fit its manifest: sizes, hashes, shapes and ranges.

Hashes find damage but not malice, so the content is checked as well.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError
from knn_logits.metrics import LEARNED_METRIC
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.store import layout
from knn_logits.store.files import HASH_CHUNK, hub_repo_of, map_array, open_file, regular_file
from knn_logits.store.manifest import Manifest
from knn_logits.store.records import FileRecord

if TYPE_CHECKING:
    from knn_logits.store.datastore import Datastore

# A power of two and a multiple of every dtype's size.
_CHUNK = HASH_CHUNK // 4
_LONGEST_CANARY = 4096
_ADVICE = "get the datastore again, or build it again"
# Opening reads such a file only up to a size, unless it is asked to: it may exceed the memory.
_LARGE_KINDS, _READ_BYTES = ("keys", "index", "vectors"), 16 << 20


def damage(
    folder: Path, manifest: Manifest, progress: Progress = no_progress, *, full: bool = True
) -> list[str]:
    """Lists the faults of files, one line each; without `full`, some large ones are not read."""
    # A download may still lack its keys.
    lacks = [] if hub_repo_of(folder) is None else manifest.key_shards
    records = [one for one in manifest.files if one not in lacks or (folder / one.name).exists()]
    problems = []
    count = counter(progress, "verifying", sum(record.bytes for record in records))
    for record in records:
        path = folder / record.name
        try:
            reads = full or record.kind not in _LARGE_KINDS or record.bytes <= _READ_BYTES
            check_file(path, record, manifest, count, full=reads)
        except DamagedError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path} cannot be read ({error.strerror}); {_ADVICE}")
    return problems


def check_file(
    path: Path,
    record: FileRecord,
    manifest: Manifest,
    on_bytes: Callable[[int], None] = lambda _: None,
    *,
    full: bool = True,
) -> None:
    """Checks a file's size, and with `full` its hash, its header and its numbers."""
    size = regular_file(path).st_size
    if size != record.bytes:
        raise DamagedError(
            f"{path} has {size} bytes, but the manifest says {record.bytes}; {_ADVICE}"
        )
    largest = layout.FORMATS[record.kind].largest if record.kind else None
    if largest is not None and size > largest:
        raise DamagedError(f"{path} is too large ({size} bytes); {_ADVICE}")
    if not full:
        return
    (dtype, shape), header = manifest.form_of(record), 0
    if dtype:
        map_array(path, dtype, shape)
        header = size - math.prod(shape) * np.dtype(dtype).itemsize
    digest, buffer, problem = hashlib.sha256(), bytearray(_CHUNK), None
    with open_file(path) as file:
        digest.update(file.read(header))
        on_bytes(header)
        while count := file.readinto(buffer):
            part = memoryview(buffer)[:count]
            digest.update(part)
            on_bytes(count)
            if dtype and problem is None:
                problem = _number_problem(np.frombuffer(part, dtype), record, manifest)
    if digest.hexdigest() != record.sha256:
        problem = "is damaged: its SHA-256 differs from the manifest's"
    if problem is not None:
        raise DamagedError(f"{path} {problem}; {_ADVICE}")


def _number_problem(numbers: Array, record: FileRecord, manifest: Manifest) -> str | None:
    if record.kind == "keys":
        return None if np.isfinite(numbers).all() else "holds keys that are not finite"
    below = layout.FORMATS[record.kind].below if record.kind else None
    if below is None or not len(numbers):
        return None
    limits = {
        "entries": manifest.entries,
        "tokens": manifest.tokens,
        "vocabulary": manifest.model.vocabulary or 1 << 31,
    }
    low, high = int(numbers.min()), int(numbers.max())
    if low >= 0 and high < limits[below]:
        return None
    return f"holds the number {low if low < 0 else high}, outside 0 to {limits[below] - 1}"


def check_together(store: Datastore) -> None:
    """Checks whether the files of an open datastore fit each other."""
    folder, manifest = store.folder, store.manifest
    keys = sum(file.shape[0] for file in manifest.key_shards if file.shape)
    missing = manifest.key_shards and keys != manifest.entries
    if store.contexts.entries != manifest.entries or missing:
        raise DamagedError(
            f"the text of {folder} has {store.contexts.entries} entries and there are {keys} keys, "
            f"but the manifest says {manifest.entries}; {_ADVICE}"
        )
    if manifest.learned is not None:
        ascending = (np.diff(store.tokens[1:]) >= 0).all()
        if manifest.metric != LEARNED_METRIC or not ascending:
            path = manifest.path(folder, "tokens")
            raise DamagedError(f"{path} does not hold the tokens of rows; {_ADVICE}")
    if not _is_canary(store.checks, manifest):
        path = manifest.path(folder, "checks")
        raise DamagedError(f"the canary in {path} does not fit; {_ADVICE}")
    for name, array in store.gate_arrays[0].items() if store.gate_arrays else ():
        if array.dtype != np.float32 or not (np.abs(array) <= layout.LARGEST_IN_GATE).all():
            path = manifest.path(folder, "gate")
            raise DamagedError(
                f"{path} holds {name}, which does not belong in a gate; refit the gate with "
                "`knn-logits tune --gate ... --write`"
            )


def _is_canary(arrays: dict[str, Array], manifest: Manifest) -> bool:
    """Whether there are tokens of the model with a key for each, or neither."""
    tokens, keys = arrays.get(layout.CANARY_TOKENS), arrays.get(layout.CANARY_KEYS)
    if tokens is None or keys is None:
        return tokens is keys
    return (
        (tokens.dtype, keys.dtype) == (np.dtype(np.int32), np.dtype(np.float32))
        and tokens.ndim == 1
        and len(tokens) <= _LONGEST_CANARY
        and keys.shape == (len(tokens), manifest.dim)
        and bool(((tokens >= 0) & (tokens < (manifest.model.vocabulary or 1 << 31))).all())
        and bool(np.isfinite(keys).all())
    )
