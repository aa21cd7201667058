"""All file names of a datastore's folder.

A job that changes a datastore writes its files next to the old ones. Their names contain the number
of the job's generation: first `tokens.npy`, then `tokens.1.npy`. The manifest, which is replaced
last, names the valid files.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Literal, get_args

Kind = Literal[
    "tokens",
    "documents",
    "keys",
    "rows",
    "index",
    "native",
    "clusters",
    "merged",
    "suffixes",
    "gate",
    "checks",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Arrays in the file of checks: the keys of a fixed text, and queries with their neighbors.
CANARY_TOKENS = "canary.tokens"
CANARY_KEYS = "canary.keys"
PROBE_QUERIES = "probe.queries"
PROBE_IDS = "probe.ids"
PROBE_DISTANCES = "probe.distances"
# The only array in the file of a learned memory's rows.
ROWS = "rows"
# Files of a published datastore that are fetched only when they are needed.
LATER: frozenset[Kind] = frozenset(("keys", "native"))

# The largest number of a gate, apart from the sign. Products of larger ones would be infinite.
LARGEST_IN_GATE = 1e18

MANIFEST = "datastore.json"
JOURNAL = "building.json"
LOCK = ".lock"

_PARTS: dict[Kind, tuple[str, str]] = {
    "tokens": ("tokens", "npy"),
    "documents": ("documents", "parquet"),
    "keys": ("keys", "npy"),
    "rows": ("rows", "safetensors"),
    "index": ("index", "safetensors"),
    "native": ("index", "faiss"),
    "clusters": ("clusters", "npy"),
    "merged": ("merged", "npy"),
    "suffixes": ("suffixes", "npy"),
    "gate": ("gate", "safetensors"),
    "checks": ("checks", "safetensors"),
}
_NAME = re.compile(r"([a-z]+)(?:\.[1-9][0-9]{0,8})?(-[0-9]{5})?\.([a-z]+)")
_PARTIAL_SUFFIX = ".partial"
_LEFT_BY_SAFETENSORS = re.compile(r"\.tmp[A-Za-z0-9]{6}")


def file_name(kind: Kind, generation: int = 0, shard: int | None = None) -> str:
    """Returns the name of a file.

    Args:
        kind: What the file holds.
        generation: The generation of the job that writes it, 0 for the first.
        shard: Number of a shard of keys, from 0; None for other kinds.
    """
    stem, suffix = _PARTS[kind]
    number = f".{generation}" if generation else ""
    part = "" if shard is None else f"-{shard:05d}"
    return f"{stem}{number}{part}.{suffix}"


def kind_of(name: str) -> Kind | None:
    """Returns what a file of this name holds; None if no datastore has such a file."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    for kind, parts in _PARTS.items():
        if parts == (found[1], found[3]):
            return kind if (found[2] is not None) == (kind == "keys") else None
    return None


TOKENS = file_name("tokens")
DOCUMENTS = file_name("documents")
INDEX = file_name("index")
CHECKS = file_name("checks")


def partial_name(name: str) -> str:
    """Name of a file while it is being written."""
    return name + _PARTIAL_SUFFIX


def is_ours(name: str) -> bool:
    """Whether a file name belongs to a datastore's folder, finished or not."""
    name = name.removesuffix(_PARTIAL_SUFFIX)
    return name in (MANIFEST, JOURNAL, LOCK) or kind_of(name) is not None


def left_by_safetensors(names: Set[str]) -> set[str]:
    """Finds files that earlier versions of this package left when they were killed.

    Those versions wrote them next to an empty partial file, which then stayed as well.
    """
    partial = any(is_ours(one) and one.endswith(f".safetensors{_PARTIAL_SUFFIX}") for one in names)
    return {one for one in names if partial and _LEFT_BY_SAFETENSORS.fullmatch(one)}
