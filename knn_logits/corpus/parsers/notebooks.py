"""Reads Jupyter notebooks: prose and code cell by cell, without the output of the code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from knn_logits.corpus.parsers import Block, Part, clean
from knn_logits.corpus.rows import Schema, UnreadableError


def read(path: Path, schema: Schema) -> Iterator[Part]:
    """Reads a notebook, one block for each cell."""
    try:
        content = json.loads(path.read_bytes().decode(schema.encoding or "utf-8-sig"))
        # Version 3 has the cells in worksheets.
        cells = [cell for sheet in content.get("worksheets", [content]) for cell in sheet["cells"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(
            f"not a Jupyter notebook: {str(error)[:120]}; save it again, or rename it to .txt"
        ) from None
    for number, cell in enumerate(cells, start=1):
        source = cell.get("source", cell.get("input", "")) if isinstance(cell, dict) else ""
        text = "".join(source) if isinstance(source, list) else str(source)
        if text.strip():
            yield Block(clean(text).rstrip() + "\n\n", f"cell {number}", "", number / len(cells))
