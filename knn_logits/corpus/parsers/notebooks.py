"""Reads Jupyter notebooks: prose and code cell by cell, without the output of the code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from knn_logits.corpus.parsers.blocks import Block, Part, RefusedError, clean


def read(path: Path, encoding: str | None) -> Iterator[Part]:
    """Reads a notebook, one block for each cell."""
    try:
        content = json.loads(path.read_bytes().decode(encoding or "utf-8-sig"))
        cells = _cells(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(
            f"not a Jupyter notebook: {str(error)[:120]}; save it anew, or rename it to .txt"
        ) from None
    for number, cell in enumerate(cells, start=1):
        source = cell.get("source", cell.get("input", "")) if isinstance(cell, dict) else ""
        text = "".join(source) if isinstance(source, list) else str(source)
        if text.strip():
            yield Block(clean(text).rstrip() + "\n\n", f"cell {number}", "", number / len(cells))


def _cells(content: Any) -> list[Any]:
    """Returns the cells of a notebook of version 4, or those in the worksheets of version 3."""
    sheets = content.get("worksheets", [content])
    return [cell for sheet in sheets for cell in sheet["cells"]]
