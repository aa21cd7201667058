"""The files of a datastore's folder: their names by a job's generation, and what each may hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "tokens", "documents", "keys", "index", "clusters", "suffixes", "vectors", "gate", "checks"
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Format:
    """A kind of file."""

    suffix: str  # the end of its name
    # Type of the numbers of a .npy file; "key" for that of the manifest's keys.
    dtype: str | None = None
    # Its lengths: fields of the manifest, "positions", or None for any number.
    shape: tuple[str | None, ...] = ()
    # Its numbers are from 0 to below this field of the manifest, or the vocabulary.
    below: str | None = None
    largest: int | None = None  # the most bytes of a file that is read into memory as a whole


FORMATS: dict[Kind, Format] = {
    "tokens": Format("npy", dtype="int32", shape=("tokens",), below="vocabulary"),
    "documents": Format("jsonl"),
    "keys": Format("npy", dtype="key", shape=(None, "dim")),
    "index": Format("safetensors"),
    "clusters": Format("npy", dtype="int32", shape=("entries",), below="entries"),
    "suffixes": Format("npy", dtype="uint32", shape=("positions",), below="tokens"),
    "vectors": Format("safetensors"),
    "gate": Format("safetensors", largest=1 << 20),
    "checks": Format("safetensors", largest=64 << 20),
}

# Arrays in the file of checks: a fixed text, and its keys.
CANARY_TOKENS = "canary.tokens"
CANARY_KEYS = "canary.keys"
# Arrays in the file of sentence vectors: the vectors, and how many each document has.
VECTORS = "vectors"
VECTOR_COUNTS = "counts"

# The largest number of a gate, apart from the sign. Products of larger ones would be infinite.
LARGEST_IN_GATE = 1e18

MANIFEST = "datastore.json"
JOURNAL = "building.json"
LOCK = ".lock"

_NAME = re.compile(r"([a-z]+)(?:\.[1-9][0-9]{0,8})?(-[0-9]{5})?\.([a-z]+)")
_KIND_OF: dict[tuple[str, str], Kind] = {
    (kind, format.suffix): kind for kind, format in FORMATS.items()
}
_PARTIAL_SUFFIX = ".partial"


def file_name(kind: Kind, generation: int = 0, shard: int | None = None) -> str:
    """The name of a file of a generation; only files of keys have a shard, from 0."""
    number = f".{generation}" if generation else ""
    part = "" if shard is None else f"-{shard:05d}"
    return f"{kind}{number}{part}.{FORMATS[kind].suffix}"


def kind_of(name: str) -> Kind | None:
    """The kind of a file of this name; None if no datastore has such a file."""
    parts = _NAME.fullmatch(name)
    kind = _KIND_OF.get((parts[1], parts[3])) if parts else None
    return kind if parts and (parts[2] is not None) == (kind == "keys") else None


TOKENS = file_name("tokens")
DOCUMENTS = file_name("documents")
CHECKS = file_name("checks")


def partial_name(name: str) -> str:
    return name + _PARTIAL_SUFFIX


def is_ours(name: str) -> bool:
    """Whether a file name belongs to a datastore's folder, finished or not."""
    name = name.removesuffix(_PARTIAL_SUFFIX)
    return name in (MANIFEST, JOURNAL, LOCK) or kind_of(name) is not None
