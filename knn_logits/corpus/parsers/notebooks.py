"""Reads Jupyter notebooks: prose and code cell by cell, without the output of the code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from knn_logits.corpus.parsers import Text, clean
from knn_logits.corpus.parsers.markdown import blocks_of
from knn_logits.corpus.rows import Schema, UnreadableError


def read(stream: Any, schema: Schema) -> Iterator[Text]:
    try:
        content = json.loads(stream.read().decode(schema.encoding or "utf-8-sig"))
        # Version 3 has the cells in worksheets.
        cells = [cell for sheet in content.get("worksheets", [content]) for cell in sheet["cells"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(
            f"not a Jupyter notebook: {str(error)[:120]}; save it again, or rename it to .txt"
        ) from None
    for number, cell in enumerate(cells, start=1):
        source = cell.get("source", cell.get("input", "")) if isinstance(cell, dict) else ""
        text = "".join(source) if isinstance(source, list) else str(source)
        text = clean(text).rstrip() + "\n\n"
        if text.strip():
            prose = cell.get("cell_type") == "markdown"
            for block in blocks_of(text) if prose else [Text(text, "pre")]:
                yield block._replace(place=f"cell {number}", fragment="", done=number / len(cells))
