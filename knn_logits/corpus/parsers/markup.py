"""Reads HTML as a person does: text, lists and tables, but no scripts, styles, menus or marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from knn_logits.corpus.parsers import Begin, Block, Part, clean
from knn_logits.corpus.rows import Schema, UnreadableError
from knn_logits.corpus.texts import characters, quoted, recognised


def _tags(names: str) -> frozenset[str]:
    return frozenset(names.split())


_HEADINGS = _tags("h1 h2 h3 h4 h5 h6")
_UNSEEN = _tags(
    "script style template noscript svg math head nav iframe object canvas audio video select "
    "button datalist"
)
_PARAGRAPHS = _HEADINGS | _tags("p pre blockquote table ul ol dl figure section")
_BLOCKS = _PARAGRAPHS | _tags(
    "address article aside body caption center dd details div dt fieldset figcaption footer form "
    "header hr li main summary tr"
)
_CELLS = ("td", "th")
# A name is cut to a line. So many pieces of text have that.
_MOST_PARTS = 200
_DECLARED = re.compile(rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w-]+)")
_SPACE = re.compile(r"[ \t\n\f\r]+")


def read(path: Path, schema: Schema) -> Iterator[Part]:
    title, blocks = blocks_of(_text_of(path, schema.encoding))
    yield Begin(title)
    yield from blocks


def blocks_of(text: str) -> tuple[str | None, list[Block]]:
    """Returns the title of a page and its blocks. A block is a heading with the text after it."""
    from lxml import etree, html

    parser = html.HTMLParser(
        encoding="utf-8", no_network=True, remove_comments=True, huge_tree=True
    )
    try:
        root = html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError, ValueError):
        return None, []
    heading = root.find(".//title")
    title = None if heading is None else " ".join((heading.text or "").split())[:300] or None
    walk = _Walk()
    walk.visit(_main(root))
    return title, [block for block in walk.blocks if block.text.strip()]


def _text_of(path: Path, encoding: str | None) -> str:
    with path.open("rb") as stream:
        declared = _DECLARED.search(stream.read(4096).lower())
        for name in (encoding, declared and declared[1].decode("ascii"), None):
            stream.seek(0)
            try:
                return "".join(characters(stream, recognised(stream, name)))
            except (UnreadableError, LookupError) as error:
                if name is None:
                    raise UnreadableError(str(error)) from None
    raise AssertionError


def _main(root: Any) -> Any:
    """Returns the part of a page that its author marks as the main one, or all of it."""
    for path in (".//main", ".//*[@role='main']", ".//article"):
        parts = root.findall(path)
        if len(parts) == 1:
            return parts[0]
    body = root.find("body")
    return root if body is None else body


@dataclass
class _Walk:
    """Collects text; `gap` is the white space due before the next word."""

    parts: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    gap: str = ""
    place: str = ""
    fragment: str = ""
    cells: int = 0

    def visit(self, root: Any) -> None:
        """Walks without recursion, since a page may be nested as deeply as its parser allows."""
        waiting: list[tuple[Any, bool, bool]] = [(root, True, False)]
        while waiting:
            node, opening, preformatted = waiting.pop()
            if not opening:
                self._close(node)
                if node is not root:
                    self._text(node.tail, preformatted)
                continue
            tag = node.tag if isinstance(node.tag, str) else None
            if tag is None or tag in _UNSEEN or _hidden(node):
                if node is not root:
                    self._text(node.tail, preformatted)
                continue
            self._open(node)
            inside = preformatted or tag == "pre"
            self._text(node.text, inside)
            waiting.append((node, False, preformatted))
            waiting.extend((child, True, inside) for child in reversed(node))
        self._flush()

    def _open(self, node: Any) -> None:
        tag = node.tag
        if tag in _HEADINGS:
            # The beginning of one, since headings of a hostile page stand within one another.
            name = quoted("".join(islice(_seen_text(node), _MOST_PARTS)))
            if name:
                self._flush()
                self.place, self.fragment = name, _anchor(node)
        if tag in _BLOCKS:
            self._break("\n\n" if tag in _PARAGRAPHS else "\n")
        if tag == "br":
            self.gap = "\n" if "\n" not in self.gap else "\n\n"
            self.gap = " " if self.cells else self.gap
        elif tag == "li":
            self._word("- ")
        elif tag in _CELLS:
            self.gap = "\t" if node.getprevious() is not None else self.gap
            self.cells += 1
        elif tag == "img" and node.get("alt"):
            self._text(node.get("alt"), False)

    def _close(self, node: Any) -> None:
        self.cells -= node.tag in _CELLS
        if node.tag in _BLOCKS:
            self._break("\n\n" if node.tag in _PARAGRAPHS else "\n")

    def _break(self, gap: str) -> None:
        if self.parts and self.parts[-1] == "- ":
            return  # this is a paragraph within an item of a list
        if self.cells:
            self.gap = self.gap or " "  # a row of a table stays a line
        elif len(gap) > len(self.gap) or "\n" not in self.gap:
            self.gap = gap

    def _text(self, text: str | None, preformatted: bool) -> None:
        text = clean(text or "")
        if preformatted:
            for number, line in enumerate(text.split("\n")):
                self.gap = "\n" * min(2, self.gap.count("\n") + 1) if number else self.gap
                if line.strip():
                    self._word(line.rstrip())
            return
        text = _SPACE.sub(" ", text)
        if text.startswith(" ") and not self.gap and self.parts and self.parts[-1] != "- ":
            self.gap = " "
        if text.strip(" "):
            self._word(text.strip(" "))
            self.gap = " " if text.endswith(" ") else ""

    def _word(self, text: str) -> None:
        if self.parts:
            self.parts.append(self.gap)
        self.parts.append(text)
        self.gap = ""

    def _flush(self) -> None:
        if self.parts:
            self.blocks.append(Block("".join(self.parts) + "\n\n", self.place, self.fragment))
        self.parts, self.gap = [], ""


def _seen_text(node: Any) -> Iterator[str]:
    from lxml import etree

    walk = etree.iterwalk(node, events=("start", "end"))
    for event, child in walk:
        if event == "end":
            yield (child.tail or "") if child is not node else ""
        elif child.tag in _UNSEEN or _permalink(child):
            walk.skip_subtree()
        else:
            yield child.text or ""


def _permalink(node: Any) -> bool:
    return node.tag == "a" and (node.text or "").strip() in ("¶", "#", "§")


def _hidden(node: Any) -> bool:
    style = (node.get("style") or "").replace(" ", "").lower()
    return (
        node.get("hidden") is not None
        or node.get("aria-hidden") == "true"
        or node.get("role") == "navigation"
        or "display:none" in style
        or _permalink(node)
    )


def _anchor(node: Any) -> str:
    """Returns the id of a heading, or the id of the section that it opens."""
    anchor, parent = node.get("id"), node.getparent()
    if anchor is None and parent is not None and node.getprevious() is None:
        anchor = parent.get("id") if parent.tag in ("section", "div", "article") else None
    return anchor if anchor and re.fullmatch(r"[\w.:-]{1,100}", anchor) else ""
