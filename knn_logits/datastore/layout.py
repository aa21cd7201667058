"""Every file name of a datastore's folder, in one place."""

from __future__ import annotations

import re

MANIFEST = "datastore.json"
TOKENS = "tokens.npy"
DOCUMENTS = "documents.parquet"
INDEX = "index.safetensors"
CHECKS = "checks.safetensors"
BUILDING = "building.json"

_KEYS = re.compile(r"keys-[0-9]{5}\.npy")
_PARTIAL_SUFFIX = ".partial"


def keys_name(shard: int) -> str:
    """File name of a shard of keys, counted from 0."""
    return f"keys-{shard:05d}.npy"


def is_keys_name(name: str) -> bool:
    """Whether a file name is that of a shard of keys."""
    return _KEYS.fullmatch(name) is not None


def partial_name(name: str) -> str:
    """Name of a file while it is being written."""
    return name + _PARTIAL_SUFFIX


def is_ours(name: str) -> bool:
    """Whether a file name belongs to a datastore's folder, finished or not."""
    name = name.removesuffix(_PARTIAL_SUFFIX)
    known = (MANIFEST, TOKENS, DOCUMENTS, INDEX, CHECKS, BUILDING)
    return name in known or is_keys_name(name)
