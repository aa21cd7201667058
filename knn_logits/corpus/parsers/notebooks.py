"""Reads Jupyter notebooks: prose and code cell by cell, without the output of the code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from knn_logits.corpus.parsers import Text, clean
from knn_logits.corpus.parsers.markdown import blocks_of


def read(stream: Any) -> Iterator[Text]:
    cells = json.loads(stream.read())["cells"]
    for number, cell in enumerate(cells, start=1):
        source = cell.get("source", "")
        text = "".join(source) if isinstance(source, list) else str(source)
        text = clean(text).rstrip() + "\n\n"
        if text.strip():
            prose = cell.get("cell_type") == "markdown"
            for block in blocks_of(text) if prose else [Text(text, "pre")]:
                yield block._replace(place=f"cell {number}", fragment="")
