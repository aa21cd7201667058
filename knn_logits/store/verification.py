"""Checks whether a datastore's files fit its manifest: sizes, hashes, shapes and ranges.

Hashes find damage but not malice, so the content is checked as well. A stamp in the user's cache,
where no publisher can forge it, makes a second opening quick.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError, StorageError
from knn_logits.metrics import LEARNED_METRIC
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.store import layout
from knn_logits.store.documents import read_documents
from knn_logits.store.entries import Contexts
from knn_logits.store.files import write_bytes
from knn_logits.store.manifest import Manifest
from knn_logits.store.reading import (
    HASH_CHUNK,
    array_facts,
    hub_repo_of,
    open_file,
    read_arrays,
    regular_file,
)
from knn_logits.store.records import FileRecord
from knn_logits.store.suffixes import is_suffix_order

# A power of two and a multiple of every dtype's size.
_CHUNK = HASH_CHUNK // 4
_THREADS = 4
_LONGEST_CANARY = 4096
_ADVICE = "get the datastore again, or build it again"
# Two changes within one tick of the file system's clock have the same time.
TICK_NS = 50_000_000

State = tuple[int, ...]


def check(
    folder: Path, manifest: Manifest, *, full: bool = False, progress: Progress = no_progress
) -> dict[str, State]:
    """Refuses damaged files, quickly after a first check; returns each file's state before."""
    since = time.time_ns()
    records = _required_files(folder, manifest)
    for record in records:
        _check_size(folder / record.name, record)
    states = {record.name: _state_of(folder / record.name) for record in records}
    if not full and _is_stamped(folder, manifest.checksum, states):
        return states
    problems = damage(folder, manifest, progress)
    if problems:
        raise DamagedError(problems[0])
    write_stamp(folder, manifest.checksum, states, since)
    return states


def unchanged(folder: Path, states: dict[str, State]) -> bool:
    """Whether files that are now open are those that were verified, by their states."""
    try:
        return all(_state_of(folder / name) == state for name, state in states.items())
    except OSError:
        return False


def _state_of(path: Path) -> State:
    state = path.stat()
    return (state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev)


def cache_folder() -> Path:
    """The folder for files that can be made again: `KNN_LOGITS_CACHE`, or the user's cache."""
    folder = os.environ.get("KNN_LOGITS_CACHE")
    if folder:
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "knn-logits"


def stamp_path(folder: Path) -> Path:
    name = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).hexdigest()
    return cache_folder() / "verified" / f"{name}.json"


def _stamp(checksum: str, states: dict[str, State]) -> bytes:
    return json.dumps({"checksum": checksum, "files": states}).encode()


def _is_stamped(folder: Path, checksum: str, states: dict[str, State]) -> bool:
    with suppress(OSError, RuntimeError):
        return stamp_path(folder).read_bytes() == _stamp(checksum, states)
    return False


def write_stamp(folder: Path, checksum: str, states: dict[str, State], since: int) -> None:
    """Notes that files in these states, taken at `since`, were verified, if it can be written."""
    if any(max(state[1:3]) > since - TICK_NS for state in states.values()):
        return
    with suppress(OSError, RuntimeError, StorageError):
        path = stamp_path(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, _stamp(checksum, states))


def _required_files(folder: Path, manifest: Manifest) -> list[FileRecord]:
    """The files that must be in a folder. A download may still lack its keys."""
    if hub_repo_of(folder) is None:
        return list(manifest.files)
    return [
        file
        for file in manifest.files
        if file.kind not in layout.LATER or (folder / file.name).exists()
    ]


def damage(folder: Path, manifest: Manifest, progress: Progress = no_progress) -> list[str]:
    """Lists everything that is wrong with a datastore's files, one line each."""
    records = _required_files(folder, manifest)
    count, lock = counter(progress, "verifying", sum(record.bytes for record in records)), Lock()

    def on_bytes(size: int) -> None:
        with lock:
            count(size)

    def problem(record: FileRecord) -> str | None:
        path = folder / record.name
        try:
            _check_size(path, record)
            _check_content(path, record, manifest, on_bytes)
        except DamagedError as error:
            return str(error)
        except OSError as error:
            return f"{path} cannot be read ({error.strerror}); {_ADVICE}"
        return None

    try:
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            problems = [line for line in pool.map(problem, records) if line]
    except RuntimeError:  # the system cannot start another thread, and one thread is enough
        problems = [line for line in map(problem, records) if line]
    if not problems:
        try:
            _check_together(folder, manifest)
        except DamagedError as error:
            problems.append(str(error))
    return problems


def _check_size(path: Path, record: FileRecord) -> None:
    size = regular_file(path).st_size
    if size != record.bytes:
        raise DamagedError(
            f"{path} has {size} bytes, but the manifest says {record.bytes}; {_ADVICE}"
        )
    largest = layout.FORMATS[record.kind].largest if record.kind else None
    if largest is not None and size > largest:
        raise DamagedError(f"{path} is too large ({size} bytes); {_ADVICE}")


def _check_content(
    path: Path, record: FileRecord, manifest: Manifest, on_bytes: Callable[[int], None]
) -> None:
    """Hashes a file, and checks its header and its numbers in the same pass."""
    (dtype, shape), offset = manifest.form_of(record), 0
    if dtype:
        try:
            *stored, offset = array_facts(path)
        except ValueError as error:
            raise DamagedError(f"{path} is damaged: {error}; {_ADVICE}") from error
        for expected in ([record.dtype, record.shape], [dtype, shape]):
            if stored != expected:
                raise DamagedError(
                    f"{path} holds {stored[0]} {stored[1]}, but the manifest says {expected[0]} "
                    f"{expected[1]}; {_ADVICE}"
                )
    digest, buffer, problem = hashlib.sha256(), bytearray(_CHUNK), None
    with open_file(path) as file:
        digest.update(file.read(offset))
        on_bytes(offset)
        while size := file.readinto(buffer):
            part = memoryview(buffer)[:size]
            digest.update(part)
            on_bytes(size)
            if dtype and problem is None:
                problem = _number_problem(part, record, manifest)
    if digest.hexdigest() != record.sha256:
        problem = "is damaged: its SHA-256 differs from the manifest's"
    if problem is not None:
        raise DamagedError(f"{path} {problem}; {_ADVICE}")


def _number_problem(part: memoryview, record: FileRecord, manifest: Manifest) -> str | None:
    """The fault of some numbers of an array; a suffix index is checked with the text."""
    if record.kind == "keys":
        half = manifest.dtype == "float16"
        bits = _numbers(part, np.uint16 if half else np.uint32)
        exponent = bits.dtype.type(0x7C00 if half else 0x7F800000)
        return "holds keys that are not finite" if exponent in bits & exponent else None
    below = layout.FORMATS[record.kind].below if record.kind else None
    numbers = _numbers(part, np.int32)
    if below is None or not len(numbers):
        return None
    limits = {"entries": manifest.entries, "vocabulary": manifest.model.vocabulary or 1 << 31}
    low, high = int(numbers.min()), int(numbers.max())
    if low >= 0 and high < limits[below]:
        return None
    return f"holds the number {low if low < 0 else high}, outside 0 to {limits[below] - 1}"


def _numbers(part: memoryview, kind: Any) -> Any:
    # The check of the size finds bytes beyond the last whole number.
    return np.frombuffer(part, kind, count=len(part) // np.dtype(kind).itemsize)


def _check_together(folder: Path, manifest: Manifest) -> None:
    documents = read_documents(
        manifest.path(folder, "documents"),
        manifest.documents,
        manifest.tokens,
        pairs=manifest.pairs is not None,
    )
    contexts = Contexts(documents.first, manifest.tokens, manifest.windows.concatenate)
    keys = sum(file.shape[0] for file in manifest.key_shards if file.shape)
    missing = manifest.key_shards and keys != manifest.entries
    if contexts.entries != manifest.entries or missing:
        raise DamagedError(
            f"the text of {folder} has {contexts.entries} entries and there are {keys} keys, but "
            f"the manifest says {manifest.entries}; {_ADVICE}"
        )
    tokens = manifest.array(folder, "tokens")
    assert tokens is not None
    suffixes = manifest.array(folder, "suffixes")
    if suffixes is not None and not is_suffix_order(tokens, documents.first, suffixes):
        raise DamagedError(
            f"{manifest.path(folder, 'suffixes')} does not match the text; rebuild it with "
            f"`knn-logits index {folder} --suffixes`"
        )
    if manifest.file("rows"):
        read_rows(manifest.path(folder, "rows"), manifest)
        if manifest.metric != LEARNED_METRIC or (np.diff(tokens[1:]) < 0).any():
            path = manifest.path(folder, "tokens")
            raise DamagedError(f"{path} does not hold the tokens of rows; {_ADVICE}")
    if not _are_checks(read_arrays(manifest.path(folder, "checks"))[0], manifest):
        path = manifest.path(folder, "checks")
        raise DamagedError(f"the canary or the probe in {path} does not fit; {_ADVICE}")
    path = manifest.path(folder, "gate")
    for name, array in read_arrays(path)[0].items() if manifest.file("gate") else ():
        if array.dtype != np.float32 or not (np.abs(array) <= layout.LARGEST_IN_GATE).all():
            raise DamagedError(
                f"{path} holds {name}, which does not belong in a gate; refit the gate with "
                "`knn-logits tune --gate ... --write`"
            )


def read_rows(path: Path, manifest: Manifest) -> Array:
    """Reads the rows of a learned memory, [entries, dim], which must be finite."""
    arrays = read_arrays(path)[0]
    rows, shape = arrays.get(layout.ROWS), (manifest.entries, manifest.dim)
    advice = "download the memory again, or distill it again"
    if rows is None or len(arrays) > 1 or rows.shape != shape or rows.dtype != manifest.dtype:
        raise DamagedError(
            f"{path} does not hold {manifest.entries} rows of {manifest.dim} numbers in "
            f"{manifest.dtype}; {advice}"
        )
    if not np.isfinite(rows).all():
        raise DamagedError(f"{path} holds numbers that are not finite; {advice}")
    return rows


# The type of the numbers of each array of checks, and its lengths by their names.
_CHECKS: dict[str, tuple[str, tuple[str, ...]]] = {
    layout.CANARY_TOKENS: ("int32", ("canary",)),
    layout.CANARY_KEYS: ("float32", ("canary", "dim")),
    layout.PROBE_QUERIES: ("float32", ("probe", "dim")),
    layout.PROBE_IDS: ("int64", ("probe", "k")),
    layout.PROBE_DISTANCES: ("float32", ("probe", "k")),
}


def _are_checks(arrays: dict[str, Array], manifest: Manifest) -> bool:
    """Whether the canary fits the model, and the probe fits the index."""
    pairs = (layout.CANARY_TOKENS, layout.CANARY_KEYS), (layout.PROBE_QUERIES, layout.PROBE_IDS)
    if any((one in arrays) != (other in arrays) for one, other in pairs):
        return False
    lengths = {"dim": manifest.dim}
    limits = {
        layout.CANARY_TOKENS: (0, manifest.model.vocabulary or 1 << 31),
        layout.PROBE_IDS: (-1, manifest.entries),
    }
    for name, (dtype, shape) in _CHECKS.items():
        array = arrays.get(name)
        if array is None:
            continue
        if array.dtype != dtype or array.ndim != len(shape):
            return False
        if any(lengths.setdefault(key, n) != n for key, n in zip(shape, array.shape, strict=True)):
            return False
        least, end = limits.get(name, (0, 0))
        if end and array.size and not least <= array.min() <= array.max() < end:
            return False
        # The distance of a neighbor that was not found is infinite.
        if not end and name != layout.PROBE_DISTANCES and not np.isfinite(array).all():
            return False
    return lengths.get("canary", 0) <= _LONGEST_CANARY
