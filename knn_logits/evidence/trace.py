"""`Trace` holds, for each token, its probabilities and the passages that caused it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from knn_logits.errors import TraceError
from knn_logits.evidence.records import SequenceTrace, TokenTrace
from knn_logits.evidence.render import show, to_html
from knn_logits.store.files import storage_error, write_bytes

_FORMAT, _VERSION = "knn-logits trace", 1


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text to a file, whole or not at all, or into a pipe or a device."""
    where = Path(path)
    if where.exists() and (not where.is_file() or where.is_relative_to("/dev")):
        try:
            with where.open("a", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            raise storage_error(where, error) from error
        return
    where = where.resolve()
    mode = where.stat().st_mode if where.exists() else None
    write_bytes(where, text.encode())
    if mode is not None:
        where.chmod(mode)


@cache
def _sequences() -> TypeAdapter[SequenceTrace]:
    return TypeAdapter(SequenceTrace)


def token_dict(token: TokenTrace) -> dict[str, Any]:
    """A token as plain values. Each neighbor has its snippet as a whole and in parts."""
    plain = asdict(token) | {"meaning": token.meaning}
    for neighbor, passage in zip(plain["neighbors"], token.neighbors, strict=True):
        neighbor["snippet"] = passage.snippet
    return plain


@dataclass(frozen=True)
class Trace:
    """The sequences of one `generate()`, or one explained text.

    Attributes:
        sequences: The traced sequences.
        stores: The names of the datastores that were searched. What is shown of a trace names the
            datastore of each document if there are several.
    """

    sequences: list[SequenceTrace]
    stores: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, number: int) -> SequenceTrace:
        return self.sequences[number]

    def __iter__(self) -> Iterator[SequenceTrace]:
        return iter(self.sequences)

    def show(self, sources: int = 8) -> None:
        """Prints the text in the colours of its influence, and the main sources below it.

        Args:
            sources: The most passages to list for each sequence.
        """
        show(self, sources)

    def _repr_html_(self) -> str:
        return to_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns the trace as plain values, as `save` writes it."""
        sequences = [
            {name: getattr(sequence, name) for name in ("prompt", "text", "apart")}
            | {"tokens": [token_dict(token) for token in sequence.tokens]}
            for sequence in self.sequences
        ]
        stores = list(self.stores)
        return {"format": _FORMAT, "version": _VERSION, "stores": stores, "sequences": sequences}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace as JSON."""
        write_whole(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n")

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace as an HTML page that needs no other files."""
        head = '<!doctype html>\n<meta charset="utf-8"><title>a trace</title>\n'
        write_whole(path, f"{head}{to_html(self)}\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Reads a trace that `save` wrote.

        Raises:
            TraceError: when the file is not a trace.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != _FORMAT or content["version"] != _VERSION:
                raise ValueError("another format or version")
            sequences = [_sequences().validate_python(row) for row in content["sequences"]]
            return cls(sequences, tuple(map(str, content.get("stores", ()))))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise TraceError(
                f"{path} is not a trace ({reason:.200}); use a file written by Trace.save()"
            ) from error
