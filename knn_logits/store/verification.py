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
from contextlib import suppress
from pathlib import Path

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError, StorageError
from knn_logits.metrics import LEARNED_METRIC
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.store import layout
from knn_logits.store.documents import map_documents, read_documents
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

# A power of two and a multiple of every dtype's size.
_CHUNK = HASH_CHUNK // 4
_LONGEST_CANARY = 4096
_ADVICE = "get the datastore again, or build it again"
_NONE = np.empty(0, np.int64)
# Two changes within one tick of the file system's clock have the same time.
TICK_NS = 50_000_000

State = tuple[int, ...]


def check(
    folder: Path, manifest: Manifest, *, full: bool = False, progress: Progress = no_progress
) -> None:
    """Refuses damaged files, quickly after a first check."""
    since, records = time.time_ns(), _required_files(folder, manifest)
    for record in records:
        _check_size(folder / record.name, record)
    states = {record.name: _state_of(folder / record.name) for record in records}
    if not full and _is_stamped(folder, manifest.checksum, states):
        return
    problems = damage(folder, manifest, progress)
    if problems:
        raise DamagedError(problems[0])
    write_stamp(folder, manifest.checksum, states, since)


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
    here = hub_repo_of(folder) is None
    shards = [] if here else manifest.key_shards
    return [file for file in manifest.files if file not in shards or (folder / file.name).exists()]


def damage(folder: Path, manifest: Manifest, progress: Progress = no_progress) -> list[str]:
    """Lists everything that is wrong with a datastore's files, one line each."""
    records, problems = _required_files(folder, manifest), []
    count = counter(progress, "verifying", sum(record.bytes for record in records))
    for record in records:
        path = folder / record.name
        try:
            _check_size(path, record)
            _check_content(path, record, manifest, count)
        except DamagedError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path} cannot be read ({error.strerror}); {_ADVICE}")
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
        if stored != [dtype, shape]:
            raise DamagedError(
                f"{path} holds {stored[0]} {stored[1]}, but the manifest says {dtype} {shape}; "
                f"{_ADVICE}"
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
                # The check of the size finds bytes beyond the last whole number.
                count = size // np.dtype(dtype).itemsize
                problem = _number_problem(np.frombuffer(part, dtype, count), record, manifest)
    if digest.hexdigest() != record.sha256:
        problem = "is damaged: its SHA-256 differs from the manifest's"
    if problem is not None:
        raise DamagedError(f"{path} {problem}; {_ADVICE}")


def _number_problem(numbers: Array, record: FileRecord, manifest: Manifest) -> str | None:
    """The fault of some numbers of an array."""
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


def _check_together(folder: Path, manifest: Manifest) -> None:
    path = manifest.path(folder, "documents")
    data, pairs = map_documents(path), manifest.pairs is not None
    documents = read_documents(path, data, manifest.documents, manifest.tokens, pairs=pairs)
    contexts = Contexts(documents.first, manifest.tokens, manifest.windows.concatenate)
    keys = sum(file.shape[0] for file in manifest.key_shards if file.shape)
    missing = manifest.key_shards and keys != manifest.entries
    if contexts.entries != manifest.entries or missing:
        raise DamagedError(
            f"the text of {folder} has {contexts.entries} entries and there are {keys} keys, but "
            f"the manifest says {manifest.entries}; {_ADVICE}"
        )
    if manifest.file("rows"):
        read_rows(manifest.path(folder, "rows"), manifest)
        tokens = manifest.array(folder, "tokens")
        if manifest.metric != LEARNED_METRIC or tokens is None or (np.diff(tokens[1:]) < 0).any():
            path = manifest.path(folder, "tokens")
            raise DamagedError(f"{path} does not hold the tokens of rows; {_ADVICE}")
    checks = manifest.path(folder, "checks")
    if not _are_checks(read_arrays(checks)[0], manifest):
        raise DamagedError(f"the canary or the probe in {checks} does not fit; {_ADVICE}")
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
    """Whether the arrays of checks have the shapes of one another, and numbers in their ranges."""
    pairs = (layout.CANARY_TOKENS, layout.CANARY_KEYS), (layout.PROBE_QUERIES, layout.PROBE_IDS)
    if any((one in arrays) != (other in arrays) for one, other in pairs):
        return False
    lengths = {"dim": manifest.dim}
    for name, (dtype, names) in _CHECKS.items():
        array = arrays.get(name, np.empty([lengths.get(key, 0) for key in names], dtype))
        if array.dtype != dtype or array.ndim != len(names):
            return False
        if any(lengths.setdefault(key, n) != n for key, n in zip(names, array.shape, strict=True)):
            return False
    tokens, ids = arrays.get(layout.CANARY_TOKENS, _NONE), arrays.get(layout.PROBE_IDS, _NONE)
    queries, keys = arrays.get(layout.PROBE_QUERIES, _NONE), arrays.get(layout.CANARY_KEYS, _NONE)
    return (
        lengths["canary"] <= _LONGEST_CANARY
        and bool(((tokens >= 0) & (tokens < (manifest.model.vocabulary or 1 << 31))).all())
        and bool(((ids >= -1) & (ids < manifest.entries)).all())
        and bool(np.isfinite(keys).all() and np.isfinite(queries).all())
    )
