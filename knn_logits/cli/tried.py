"""Prints the kinds of index that one was chosen among."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knn_logits.cli.terminal import say

if TYPE_CHECKING:
    from knn_logits.store.records import IndexRecord


def tried_as_json(record: IndexRecord) -> list[dict[str, Any]] | None:
    """Returns what was measured of each kind; None where none was compared."""
    return None if record.tried is None else [one.model_dump() for one in record.tried]


def say_tried(record: IndexRecord) -> None:
    """Prints a table of what was measured of each kind, if kinds were compared."""
    if record.tried is None:
        return
    from knn_logits.building.choosing import table

    for line in table(record.tried):
        say(line)
