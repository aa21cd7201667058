"""Checks whether a datastore's files fit its manifest: hashes, shapes and ranges.

Hashes find damage but not malice, since the publisher of a datastore also publishes its hashes. So
the content of each file is checked as well, and nothing is read before its size is known.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.errors import DamagedError
from knn_logits.progress import Progress, no_progress
from knn_logits.store import layout, stamps
from knn_logits.store.documents import Contexts, Documents, read_documents
from knn_logits.store.learned import read_rows
from knn_logits.store.manifest import Manifest
from knn_logits.store.merged import document_of_entries, problem_of
from knn_logits.store.reading import (
    HASH_CHUNK,
    array_facts,
    hub_repo_of,
    map_array,
    open_file,
    read_arrays,
    regular_file,
)
from knn_logits.store.records import FileRecord
from knn_logits.store.suffixes import is_suffix_order

# A power of two and a multiple of every dtype's size.
_CHUNK = HASH_CHUNK // 4
_THREADS = 4
# The most bytes of a file that is read into memory as a whole.
_LARGEST = {"checks": 64 << 20, "gate": 1 << 20}
_LONGEST_CANARY = 4096
# Files with one number for each entry.
_OF_ENTRIES: tuple[layout.Kind, ...] = ("clusters", "merged")
_ADVICE = "get the datastore again, or build it again"


def check(
    folder: Path, manifest: Manifest, *, full: bool = False, progress: Progress = no_progress
) -> dict[str, stamps.State]:
    """Refuses a datastore with damaged files. It is quick after a first check on this machine.

    Files that are opened afterwards are the verified ones if `unchanged` then returns True.

    Args:
        folder: The datastore's folder.
        manifest: Its manifest.
        full: Read every byte, even if the files were verified before.
        progress: A callback that is told the bytes read, and all bytes.

    Returns:
        The state of each file before it was read: its place on the disk, its size and its times.

    Raises:
        DamagedError: when a file is damaged. The message names the first one.
    """
    since = stamps.now()
    records = files_here(folder, manifest)
    for record in records:
        problem = _size_problem(folder, record)
        if problem:
            raise DamagedError(problem)
    states = {one.name: stamps.state_of(folder / one.name) for one in records}
    checksum = manifest.checksum
    if not full and stamps.is_stamped(folder, checksum, states):
        return states
    found = damage(folder, manifest, progress)
    if found:
        raise DamagedError(found[0])
    stamps.write_stamp(folder, checksum, states, since)
    return states


def unchanged(folder: Path, states: dict[str, stamps.State]) -> bool:
    """Whether files are still those that were verified.

    Called once the files are open, it tells whether the open files were verified. A file with the
    same place on the disk, size and times is the same file. Replacing it, or putting it back, would
    have changed its times.
    """
    try:
        return all(stamps.state_of(folder / name) == state for name, state in states.items())
    except OSError:
        return False


def files_here(folder: Path, manifest: Manifest) -> list[FileRecord]:
    """Returns the files that must be in a folder. A download may still lack its keys."""
    if hub_repo_of(folder) is None:
        return list(manifest.files)
    return [
        one
        for one in manifest.files
        if layout.kind_of(one.name) not in layout.LATER or (folder / one.name).exists()
    ]


def damage(folder: Path, manifest: Manifest, progress: Progress = no_progress) -> list[str]:
    """Lists everything that is wrong with a datastore's files, one line each.

    Args:
        folder: The datastore's folder.
        manifest: Its manifest.
        progress: A callback that is told the bytes read, and all bytes.
    """
    records = files_here(folder, manifest)
    total = sum(record.bytes for record in records)
    lock, done = threading.Lock(), 0

    def on_bytes(size: int) -> None:
        nonlocal done
        with lock:
            done += size
            progress("verifying", done, total)

    def problem(record: FileRecord) -> str | None:
        try:
            return _size_problem(folder, record) or _content_problem(
                folder / record.name, record, manifest, on_bytes
            )
        except OSError as error:
            return f"{folder / record.name} cannot be read ({error.strerror}); {_ADVICE}"

    try:
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            found = [one for one in pool.map(problem, records) if one]
    except RuntimeError:  # the system cannot start another thread, and one thread is enough
        done = 0
        found = [one for one in map(problem, records) if one]
    if not found:
        try:
            _check_together(folder, manifest)
        except DamagedError as error:
            found.append(str(error))
    return found


def _size_problem(folder: Path, record: FileRecord) -> str | None:
    path = folder / record.name
    try:
        size = regular_file(path).st_size
    except DamagedError as error:
        return str(error)
    if size != record.bytes:
        return f"{path} has {size} bytes, but the manifest says {record.bytes}; {_ADVICE}"
    if size > _LARGEST.get(layout.kind_of(record.name) or "", size):
        return f"{path} is too large ({size} bytes); {_ADVICE}"
    return None


def _content_problem(
    path: Path, record: FileRecord, manifest: Manifest, on_bytes: Callable[[int], None]
) -> str | None:
    kind, offset, look = layout.kind_of(record.name), 0, None
    if kind in ("tokens", "keys", "clusters", "merged", "suffixes"):
        expected = {"keys": manifest.dtype, "suffixes": "uint32"}.get(kind, "int32")
        try:
            dtype, shape, offset = array_facts(path)
        except ValueError as error:
            return f"{path} is damaged: {error}; {_ADVICE}"
        if (dtype, shape) != (record.dtype, record.shape) or dtype != expected:
            return (
                f"{path} holds {dtype} {shape}, but the manifest says {record.dtype} "
                f"{record.shape} of {expected}; {_ADVICE}"
            )
        limit = manifest.model.vocabulary or 1 << 31
        limit = manifest.entries if kind in ("clusters", "merged") else limit
        # Each number of a suffix index is looked at with the tokens.
        look = None if kind == "suffixes" else _below(limit)
        look = _finite(dtype) if kind == "keys" else look
    return _stream(path, record, offset, look, on_bytes)


def _stream(
    path: Path,
    record: FileRecord,
    offset: int,
    look: Callable[[Any], str | None] | None,
    on_bytes: Callable[[int], None],
) -> str | None:
    """Hashes a file, and checks its numbers in the same pass."""
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK)
    problem = None
    with open_file(path) as file:
        digest.update(file.read(offset))
        on_bytes(offset)
        while size := file.readinto(buffer):
            part = memoryview(buffer)[:size]
            digest.update(part)
            on_bytes(size)
            if look is not None and problem is None:
                problem = look(part)
    if digest.hexdigest() != record.sha256:
        return f"{path} is damaged: its SHA-256 differs from the manifest's; {_ADVICE}"
    return f"{path} {problem}; {_ADVICE}" if problem else None


def _numbers(part: Any, kind: Any) -> Any:
    # The check of the size finds bytes beyond the last whole number.
    return np.frombuffer(part, kind, count=len(part) // np.dtype(kind).itemsize)


def _finite(dtype: str) -> Callable[[Any], str | None]:
    kind, exponent = (np.uint16, 0x7C00) if dtype == "float16" else (np.uint32, 0x7F800000)

    def look(part: Any) -> str | None:
        bits = _numbers(part, kind) & kind(exponent)
        return "holds keys that are not finite" if exponent in bits else None

    return look


def _below(limit: int) -> Callable[[Any], str | None]:
    def look(part: Any) -> str | None:
        tokens = _numbers(part, np.int32)
        if not len(tokens):
            return None
        low, high = int(tokens.min()), int(tokens.max())
        if low >= 0 and high < limit:
            return None
        return f"holds the number {low if low < 0 else high}, outside 0 to {limit - 1}"

    return look


def _check_merged(
    folder: Path, manifest: Manifest, documents: Documents, contexts: Contexts
) -> None:
    """Checks whether entries stand for entries of their own token and document only."""
    merged, text = manifest.file("merged"), manifest.file("tokens")
    if merged is None or text is None:
        return
    into = map_array(folder / merged.name, "int32", (manifest.entries,))
    tokens = map_array(folder / text.name, "int32", (manifest.tokens,))
    values = np.delete(np.asarray(tokens), contexts.first)
    problem = problem_of(into, values, document_of_entries(documents.length, contexts))
    if problem is not None:
        raise DamagedError(
            f"{folder / merged.name} is wrong, since {problem}; merge again with `knn-logits merge "
            f"{folder}`, or get it again"
        )


def _check_together(folder: Path, manifest: Manifest) -> None:
    """Checks whether the files fit one another."""
    record = manifest.file("documents")
    assert record is not None
    documents = read_documents(
        folder / record.name,
        manifest.documents,
        manifest.tokens,
        pairs=manifest.pairs is not None,
    )
    contexts = Contexts.of(documents.first, manifest.tokens, manifest.windows.concatenate)
    keys = sum(one.shape[0] for one in manifest.key_shards if one.shape)
    if contexts.entries != manifest.entries or (manifest.key_shards and keys != manifest.entries):
        raise DamagedError(
            f"the text of {folder} has {contexts.entries} entries and there are {keys} keys, but "
            f"the manifest says {manifest.entries}; {_ADVICE}"
        )
    for kind in _OF_ENTRIES:
        numbers = manifest.file(kind)
        if numbers is not None and numbers.shape != (manifest.entries,):
            raise DamagedError(
                f"{folder / numbers.name} has the shape {numbers.shape}, not one number for each "
                f"entry; {_ADVICE}"
            )
    _check_merged(folder, manifest, documents, contexts)
    suffixes, text = manifest.file("suffixes"), manifest.file("tokens")
    if suffixes is not None and text is not None:
        tokens = map_array(folder / text.name, "int32", (manifest.tokens,))
        order = map_array(folder / suffixes.name, "uint32", suffixes.shape or ())
        if not is_suffix_order(tokens, documents.first, order):
            raise DamagedError(
                f"{folder / suffixes.name} is not the suffix index of the text; make it again with "
                f"`knn-logits index {folder} --suffixes`"
            )
    rows = manifest.file("rows")
    if rows is not None:
        _check_rows(folder, manifest, rows)
    for one in manifest.key_shards:
        if one.shape is None or len(one.shape) != 2 or one.shape[1] != manifest.dim:
            raise DamagedError(
                f"{folder / one.name} has the shape {one.shape}, not rows of {manifest.dim} "
                f"numbers; {_ADVICE}"
            )
    _check_checks(folder, manifest)
    gate = manifest.file("gate")
    if gate is not None:
        for name, array in read_arrays(folder / gate.name)[0].items():
            sane = array.dtype == np.float32 and (np.abs(array) <= layout.LARGEST_IN_GATE).all()
            if not sane:
                raise DamagedError(
                    f"{folder / gate.name} holds {name}, which does not belong in a gate; fit the "
                    "gate again with `knn-logits tune --gate ... --write`"
                )


def _check_rows(folder: Path, manifest: Manifest, record: FileRecord) -> None:
    """Checks the rows of a learned memory, whose tokens ascend."""
    read_rows(folder / record.name, manifest)
    text = manifest.file("tokens")
    assert text is not None
    tokens = map_array(folder / text.name, "int32", (manifest.tokens,))[1:]
    if manifest.metric != "ip" or (np.diff(tokens) < 0).any():
        raise DamagedError(f"{folder / text.name} does not hold the tokens of rows; {_ADVICE}")


def _check_checks(folder: Path, manifest: Manifest) -> None:
    """Checks that the canary fits the model, and the probe fits the index."""
    record = manifest.file("checks")
    assert record is not None
    arrays = read_arrays(folder / record.name)[0]
    tokens, keys = arrays.get(layout.CANARY_TOKENS), arrays.get(layout.CANARY_KEYS)
    asked, ids = arrays.get(layout.PROBE_QUERIES), arrays.get(layout.PROBE_IDS)
    sane = (tokens is None) == (keys is None) and (asked is None) == (ids is None)
    if sane and tokens is not None and keys is not None:
        sane = (
            _are_numbers(tokens, np.int32, 1, manifest.model.vocabulary or 1 << 31)
            and len(tokens) <= _LONGEST_CANARY
            and _are_keys(keys, len(tokens), manifest.dim)
        )
    if sane and asked is not None and ids is not None:
        distances = arrays.get(layout.PROBE_DISTANCES, np.zeros(ids.shape, np.float32))
        sane = (
            _are_numbers(ids, np.int64, 2, manifest.entries, least=-1)
            and _are_keys(asked, len(ids), manifest.dim)
            and distances.dtype == np.float32
            and distances.shape == ids.shape
        )
    if not sane:
        raise DamagedError(
            f"the canary or the probe in {folder / record.name} does not fit; {_ADVICE}"
        )


def _are_numbers(array: Array, kind: type, dimensions: int, end: int, least: int = 0) -> bool:
    if array.dtype != kind or array.ndim != dimensions:
        return False
    return not array.size or (int(array.min()) >= least and int(array.max()) < end)


def _are_keys(array: Array, rows: int, dim: int) -> bool:
    if array.dtype != np.float32 or array.shape != (rows, dim):
        return False
    return bool(np.isfinite(array).all())
