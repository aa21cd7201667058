"""Every file name of a datastore's folder, in one place.

A job that changes a datastore writes its files beside the old ones, under names with a generation
of their own (`tokens.npy`, then `tokens.1.npy`), and the manifest, replaced last, says which count.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Literal, get_args

Kind = Literal[
    "tokens", "documents", "keys", "index", "native", "clusters", "suffixes", "gate", "checks"
]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Arrays in the file of checks: the keys of a fixed text, and queries with what they find.
CANARY_TOKENS = "canary.tokens"
CANARY_KEYS = "canary.keys"
PROBE_QUERIES = "probe.queries"
PROBE_IDS = "probe.ids"
PROBE_DISTANCES = "probe.distances"
# What a reader of a published datastore fetches only when something asks for it.
LATER: frozenset[Kind] = frozenset(("keys", "native"))

# Of the numbers of a gate, without their sign: products of larger ones are infinite.
LARGEST_IN_GATE = 1e18

MANIFEST = "datastore.json"
JOURNAL = "building.json"
LOCK = ".lock"

_PARTS: dict[Kind, tuple[str, str]] = {
    "tokens": ("tokens", "npy"),
    "documents": ("documents", "parquet"),
    "keys": ("keys", "npy"),
    "index": ("index", "safetensors"),
    "native": ("index", "faiss"),
    "clusters": ("clusters", "npy"),
    "suffixes": ("suffixes", "npy"),
    "gate": ("gate", "safetensors"),
    "checks": ("checks", "safetensors"),
}
_NAME = re.compile(r"([a-z]+)(?:\.[1-9][0-9]{0,8})?(-[0-9]{5})?\.([a-z]+)")
_PARTIAL_SUFFIX = ".partial"
_LEFT_BY_SAFETENSORS = re.compile(r"\.tmp[A-Za-z0-9]{6}")


def file_name(kind: Kind, generation: int = 0, shard: int | None = None) -> str:
    """Name of a file.

    Args:
        kind: What it holds.
        generation: Of the job that writes it, 0 for the first.
        shard: Number of a shard of keys, from 0; None for other kinds.
    """
    stem, suffix = _PARTS[kind]
    number = f".{generation}" if generation else ""
    part = "" if shard is None else f"-{shard:05d}"
    return f"{stem}{number}{part}.{suffix}"


def kind_of(name: str) -> Kind | None:
    """What a file of this name holds, None when no datastore has such a file."""
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
    """Which files of a folder a writer of released versions left there when it was killed.

    It wrote them beside an empty partial file, which a kill left as well.
    """
    partial = any(is_ours(one) and one.endswith(f".safetensors{_PARTIAL_SUFFIX}") for one in names)
    return {one for one in names if partial and _LEFT_BY_SAFETENSORS.fullmatch(one)}
