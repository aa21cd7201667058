"""Reads plain text, source code, Markdown and notebooks.

The text stays as it is written, but for line breaks that only keep lines short: a person types
a space there, and a model continues with one.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from knn_logits.corpus.documents import ITEM, TEXT_LINE, paragraphs, prose, quoted
from knn_logits.corpus.parsers import Text, clean
from knn_logits.store.blocks import HEADINGS, unlinked

_FRONT = re.compile(r"---\n(?:.*\n)*?---\n")
# Lines of tables, code and markup, which keep their ends. Justified text has wide blanks, too, but
# after a sentence.
_LAID_OUT = re.compile(r"\s*(?:[|+#$>%]|\.\. |[=~*-]{3})|.*(?:[^\s.]|[. ]\.)(?: {3,}|\t)\S")
# A line of reStructuredText above code.
_CODE = re.compile(r"\.\. (?:code|sourcecode|parsed-literal)|(?!\.\. ).*::\s*\Z", re.DOTALL)
# The share of the lines of a wrapped paragraph that the next word would make longer than the
# longest one, less some columns, since people wrap lines by hand, too.
_WRAPPED, _SLACK = 0.8, 8
# Manual pages part words with this sign at the ends of lines.
_HYPHENATION = re.compile(r"(?<=[^\W\d_])\u2010\n[ \t]*(?=[^\W\d_])")
_KINDS = {"paragraph_open": "p", "fence": "pre", "code_block": "pre", "html_block": "p"}


def read(lines: Iterable[str]) -> Iterator[Text]:
    """Reads prose, with the headings and lists that are plain without markup."""
    return placed(flowing(prose(lines)))


def flowing(blocks: Iterable[tuple[str, str, int]]) -> Iterator[tuple[str, str, int]]:
    """Joins the lines of wrapped paragraphs, but not of code."""
    code = False
    pairs = itertools.pairwise(itertools.chain(blocks, [("p", "", 0)]))
    for (kind, text, number), (following, _, _) in pairs:
        code = code and text[:1].isspace()
        joined = text if code else _HYPHENATION.sub("", unwrapped(text))
        if joined != text and not following and joined.count("\n") == 1:
            joined = joined[:-1] + " "  # a long paragraph, which comes in parts
        code = code or _CODE.match(text) is not None
        yield kind, joined, number


def unwrapped(text: str) -> str:
    """Joins the lines of a paragraph if almost all end where the next word would not fit."""
    body = text.rstrip()
    lines = body.split("\n")
    width = max(map(len, lines))
    own, *others = (len(line) - len(line.lstrip()) for line in lines)
    if width < TEXT_LINE or len(set(others)) != 1 or any(map(_LAID_OUT.match, lines)):
        return text
    broken = any(line.endswith(("  ", "\\")) for line in lines[:-1])
    if broken or not all(map(str.strip, lines)):
        return text
    full = [
        len(line.rstrip()) + 1 + len(following.split()[0]) > width - _SLACK
        for line, following in itertools.pairwise(lines)
    ]
    if own < others[0] and not full[0] and not ITEM.match(lines[0]):
        term, below = text.split("\n", 1)  # such as an option, above what it does
        return f"{term}\n{unwrapped(below)}"
    if sum(full) < _WRAPPED * len(full):
        return text
    lines = _HYPHENATION.sub("", body).split("\n")
    joined = " ".join([lines[0].rstrip(), *(line.strip() for line in lines[1:])])
    return joined + text[len(body) :]


def read_lines(lines: Iterable[str]) -> Iterator[Text]:
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
    start = front.end() if front else 0
    first = text.count("\n", 0, start) + 1
    blocks = [(1, Text(front[0], "pre"))] if front else []
    blocks += [(first + line, block) for line, block in _blocks(text[start:])]
    if any(block.kind in HEADINGS for _, block in blocks):
        yield from (block for _, block in blocks)
        return
    yield from placed((block.kind, block.text, line) for line, block in blocks)


def _blocks(text: str) -> Iterator[tuple[int, Text]]:
    """Yields the blocks of a text, and the line of each, counted from 0."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    lines = text.split("\n")
    lines = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
    starts: list[tuple[int, Text]] = []  # the line of each block, and what is known of it
    lists = 0
    tokens = parser.parse(text)
    for number, token in enumerate(tokens):
        kind, place, fragment = _KINDS.get(token.type, ""), "", ""
        lists += (token.type == "list_item_open") - (token.type == "list_item_close")
        if token.type == "heading_open":
            name = unlinked(tokens[number + 1].content)
            kind, place = token.tag, quoted(name)
            fragment = re.sub(r"[^\w\- ]", "", " ".join(name.split()).lower()).replace(" ", "-")
        elif token.type == "tr_open":
            kind = "th" if tokens[number - 1].type == "thead_open" else "tr"
        elif kind == "p" and lists:
            kind = "li"
        if token.type == "paragraph_open" and token.map:
            first, end = token.map
            joined = unwrapped("".join(lines[first:end]))
            lines[first:end] = [joined, *[""] * (end - first - 1)]
        if kind and token.map and (not starts or token.map[0] > starts[-1][0]):
            starts.append((token.map[0], Text("", kind, place, fragment[:100])))
    ends = [line for line, _ in starts] + [len(lines)]
    yield 0, Text("".join(lines[: ends[0]]), "" if starts else "p")
    for (line, block), end in zip(starts, ends[1:], strict=True):
        yield line, block._replace(text="".join(lines[line:end]))


def read_notebook(stream: Any) -> Iterator[Text]:
    """Reads a Jupyter notebook: prose and code cell by cell, without the output of the code."""
    cells = json.loads(stream.read())["cells"]
    for number, cell in enumerate(cells, start=1):
        source = cell.get("source", "")
        text = "".join(source) if isinstance(source, list) else str(source)
        text = clean(text).rstrip() + "\n\n"
        if text.strip():
            is_prose = cell.get("cell_type") == "markdown"
            blocks = _blocks(text) if is_prose else [(0, Text(text, "pre"))]
            for _, block in blocks:
                yield block._replace(place=f"cell {number}", fragment="")
