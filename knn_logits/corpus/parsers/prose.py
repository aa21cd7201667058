"""Reads plain text, source code, Markdown and notebooks, whose text stays as it is written."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from knn_logits.corpus.blocks import paragraphs, prose, quoted
from knn_logits.corpus.parsers import Text, clean
from knn_logits.store.blocks import HEADINGS

_FRONT = re.compile(r"---\n(?:.*\n)*?---\n")
_KINDS = {"paragraph_open": "p", "fence": "pre", "code_block": "pre", "html_block": "p"}


def read(lines: Iterable[str]) -> Iterator[Text]:
    """Reads prose, with the headings and lists that are plain without markup."""
    return placed(prose(lines))


def read_lines(lines: Iterable[str]) -> Iterator[Text]:
    """Reads any other text as paragraphs."""
    return placed(
        ("p" if begins else "", "".join(part), number) for part, number, begins in paragraphs(lines)
    )


def placed(blocks: Iterable[tuple[str, str, int]]) -> Iterator[Text]:
    """Names the lines of blocks, except of a text that is a single line."""
    rest = iter(blocks)
    head = list(itertools.islice(rest, 2))
    single = len(head) == 1 and "\n" not in head[0][1].strip()
    for kind, text, number in itertools.chain(head, rest):
        yield Text(text, kind, "" if single else f"line {number}")


def read_markdown(lines: Iterator[str]) -> Iterator[Text]:
    """Reads Markdown, whose places are its headings, or its lines if it has none."""
    text = "".join(lines)
    # The front matter of a file is between two rules.
    front = _FRONT.match(text)
    blocks = [Text(front[0], "pre")] if front else []
    blocks += blocks_of(text[front.end() :] if front else text)
    if any(block.kind in HEADINGS for block in blocks):
        yield from blocks
        return
    numbers = itertools.accumulate((block.text.count("\n") for block in blocks), initial=1)
    yield from placed((b.kind, b.text, n) for b, n in zip(blocks, numbers, strict=False))


def blocks_of(text: str) -> Iterator[Text]:
    """Yields the blocks of a text, which together are the text."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    starts: list[tuple[int, str, str, str]] = []  # line, kind, place, fragment
    lists = 0
    tokens = parser.parse(text)
    for number, token in enumerate(tokens):
        kind, place, fragment = _KINDS.get(token.type, ""), "", ""
        lists += (token.type == "list_item_open") - (token.type == "list_item_close")
        if token.type == "heading_open":
            name = tokens[number + 1].content
            kind, place = token.tag, quoted(name)
            fragment = re.sub(r"[^\w\- ]", "", " ".join(name.split()).lower()).replace(" ", "-")
        elif token.type == "tr_open":
            kind = "th" if tokens[number - 1].type == "thead_open" else "tr"
        elif kind == "p" and lists:
            kind = "li"
        if kind and token.map and (not starts or token.map[0] > starts[-1][0]):
            starts.append((token.map[0], kind, place, fragment[:100]))
    lines = text.split("\n")
    lines = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
    ends = [line for line, *_ in starts] + [len(lines)]
    yield Text("".join(lines[: ends[0]]), "" if starts else "p")
    for (line, kind, place, fragment), end in zip(starts, ends[1:], strict=True):
        yield Text("".join(lines[line:end]), kind, place, fragment)


def read_notebook(stream: Any) -> Iterator[Text]:
    """Reads a Jupyter notebook: prose and code cell by cell, without the output of the code."""
    cells = json.loads(stream.read())["cells"]
    for number, cell in enumerate(cells, start=1):
        source = cell.get("source", "")
        text = "".join(source) if isinstance(source, list) else str(source)
        text = clean(text).rstrip() + "\n\n"
        if text.strip():
            is_prose = cell.get("cell_type") == "markdown"
            for block in blocks_of(text) if is_prose else [Text(text, "pre")]:
                yield block._replace(place=f"cell {number}", fragment="")
