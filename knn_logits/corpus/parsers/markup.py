"""Reads HTML as a person does: text, lists and tables, but no scripts, styles, menus or marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from knn_logits.corpus.documents import quoted
from knn_logits.corpus.parsers import Begin, Part, Text, clean
from knn_logits.corpus.texts import decoded
from knn_logits.store.blocks import HEADINGS


def _tags(names: str) -> frozenset[str]:
    return frozenset(names.split())


_UNSEEN = _tags(
    "script style template noscript svg head nav iframe object canvas audio video select "
    "button datalist"
)
_PARAGRAPHS = frozenset(HEADINGS) | _tags("p pre blockquote table ul ol dl figure section")
_BLOCKS = _PARAGRAPHS | _tags(
    "address article aside body caption center dd details div dt fieldset figcaption footer form "
    "header hr li main summary tr"
)
_CELLS, _LISTS = ("td", "th"), ("ol", "ul", "menu")
_KINDS = frozenset((*HEADINGS, "li", "pre"))
_WRITTEN = ("sub", "sup", "math")  # they are written as a whole
# How far a cell is repeated, and how much of it.
_MOST_COLUMNS, _MOST_ROWS, _LONGEST_CELL = 50, 1000, 200
_DECLARED = re.compile(rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w-]+)")
_NOTE = re.compile("footnote|noteref|reference")
_INLINE = re.compile(r"display:\s*inline")
# The most levels of a formula.
_DEEPEST = 20
_PERMALINKS = ("¶", "#", "§", "↑", "↩", "↩︎")
_SPACE = re.compile(r"[ \t\n\f\r]+")


def read(stream: Any) -> Iterator[Part]:
    title, texts = texts_of(source_of(stream.read()))
    yield Begin(title)
    yield from texts


def texts_of(source: str, *, numbered: bool = False) -> tuple[str | None, list[Text]]:
    """Returns the title of a page and its blocks; `numbered` if its items begin with numbers."""
    from lxml import etree, html

    parser = html.HTMLParser(
        encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True, huge_tree=True
    )
    try:
        root = html.document_fromstring(source.encode("utf-8", "replace"), parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError, ValueError):
        return None, []
    heading = root.find(".//title")
    title = None if heading is None else " ".join((heading.text or "").split())[:300] or None
    walk, main = _Walk(numbered), _main(root)
    main.tail = None
    walk.visit(etree.iterwalk(main, events=("start", "end")))
    return title, walk.texts


def source_of(page: bytes) -> str:
    """Decodes a page by the encoding that it declares, or that is recognised."""
    declared = _DECLARED.search(page[:4096].lower())
    return decoded(page, declared and declared[1].decode("ascii"))


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
    """Collects the blocks of a page, and the rows of its tables with merged cells repeated."""

    numbered: bool  # whether the text of an item begins with its number
    texts: list[Text] = field(default_factory=list)  # the blocks
    parts: list[str] = field(default_factory=list)  # of the block or the cell that is open
    gap: str = ""  # the white space due before the next word
    between: str = ""  # the line breaks due before the next block
    kinds: list[str] = field(default_factory=lambda: ["p"])  # of the elements that are open
    preformatted: int = 0  # how many `pre` are open
    marker: str = ""  # of a list item that has no word yet
    # The next number of each list that is open; None for one without numbers
    lists: list[int | None] = field(default_factory=list)
    place: str = ""
    fragment: str = ""
    anchor: str = ""  # the fragment of the heading that is open
    cells: int = 0  # how many cells are open, one in another
    row: list[str] = field(default_factory=list)
    spans: dict[int, tuple[str, int]] = field(default_factory=dict)  # cells that reach down
    first: bool = False  # whether no row of the table was read

    def visit(self, walk: Any) -> None:
        """Takes the events of lxml's walk, whose depth is that of a page and not of Python."""
        for event, node in walk:
            unseen = node.tag in _UNSEEN or _hidden(node)
            if event == "start" and (unseen or node.tag in _WRITTEN):
                walk.skip_subtree()
            elif event == "start":
                self._open(node)
                self._text(node.text)
            else:
                if not unseen:
                    self._close(node)
                self._text(node.tail)
        self._flush()
        self._end("\n\n")

    def _open(self, node: Any) -> None:
        tag = _tag(node)
        self.preformatted += node.tag == "pre"
        if tag in _BLOCKS:
            self._break("\n\n" if tag in _PARAGRAPHS else "\n")
        if tag in HEADINGS:
            self.anchor = _anchor(node)
        if tag in _KINDS:
            self.kinds.append("li" if self.kinds[-1] == "li" and tag != "pre" else tag)
        if tag in _LISTS:
            self.lists.append(whole_number(node.get("start"), 1) if tag == "ol" else None)
        elif tag == "br":
            self.gap = " " if self.cells else self.gap + "\n" if self.gap == "\n" else "\n"
        elif tag == "li":
            self.marker = self._marker(node)
        elif tag in _CELLS:
            self.gap = self.gap or " "
            self.cells += 1
        elif tag == "table" and not self.cells:
            self.spans, self.first = {}, True
        elif tag == "img" and node.get("alt"):
            self._text(node.get("alt"))

    def _close(self, node: Any) -> None:
        tag = _tag(node)
        self.preformatted -= node.tag == "pre"
        if tag == "math":
            self._word(formula(node))
        elif tag in _WRITTEN:
            self._raised(node)
        elif tag in _CELLS:
            self.cells -= 1
            if not self.cells:
                self._cell(node)
        elif tag == "tr" and not self.cells:
            self._row(node)
        elif tag in _BLOCKS:
            self._break("\n\n" if tag in _PARAGRAPHS else "\n")
        if tag in _KINDS:
            self.kinds.pop()
            self.marker = ""
        if tag in _LISTS:
            self.lists.pop()

    def _marker(self, item: Any) -> str:
        """The number of a list item, or a dash. One outside of a list has its mark in its text."""
        if not self.lists or self.lists[-1] is None:
            return "- " if self.lists else ""
        number = whole_number(item.get("value"), self.lists[-1])
        self.lists[-1] = number + 1
        return "" if self.numbered else f"{number}. "

    def _break(self, gap: str) -> None:
        if self.cells:
            self.gap = self.gap or " "  # a row of a table stays a line
            return
        self._flush()
        gap = "\n" if self.kinds[-1] == "li" else gap
        self.between = max(self.between, gap, key=len)

    def _cell(self, node: Any) -> None:
        text = "".join(self.parts)
        self.parts, self.gap = [], ""
        self._reach()
        across, down = _span(node, "colspan", _MOST_COLUMNS), _span(node, "rowspan", _MOST_ROWS)
        for column in range(across):
            if down > 1:
                self.spans[len(self.row)] = (text[:_LONGEST_CELL], down - 1)
            self.row.append(text if not column else text[:_LONGEST_CELL])

    def _reach(self) -> None:
        """Repeats the cells above that reach down to the next columns."""
        while (column := len(self.row)) in self.spans:
            text, left = self.spans.pop(column)
            if left > 1:
                self.spans[column] = (text, left - 1)
            self.row.append(text)

    def _row(self, node: Any) -> None:
        self._reach()
        row, self.row = self.row, []
        if not any(row):
            return
        tags = [child.tag for child in node if child.tag in _CELLS]
        row = row[:1] if len(tags) == 1 and len(set(row)) == 1 else row
        plain = self.first and "th" not in tags and not any(map(str.isdigit, "".join(row)))
        heads = "td" not in tags or node.getparent().tag == "thead" or plain
        kind = "p" if len(row) == 1 else "th" if heads else "tr"
        self.first = False
        self.parts = ["\t".join(row)]
        self._flush(kind)
        self.between = "\n"

    def _raised(self, node: Any) -> None:
        """Writes what is raised or lowered so that it does not become a part of a number."""
        text = " ".join(clean("".join(node.itertext())).split())
        before = "" if self.gap or not self.parts else self.parts[-1][-1:]
        marks = f"{node.get('class')} {node.get('role')}"
        linked = node.getparent() is not None and node.getparent().tag == "a"
        if not text:
            return
        if linked or node.find(".//a") is not None or _NOTE.search(marks):
            self.gap = self.gap or " "
            self._word(f"[{text.strip('[]()')}]")
        elif node.tag == "sub":
            self._word(f"_{text}" if before.isdigit() else text)
            self.gap = " " if (node.tail or "")[:1].isdigit() else ""
        elif not before or (len(text) > 1 and text.isalpha()):  # such as 1st or ™
            self._word(text)
        else:
            self._word(f"^({text})" if " " in text else f"^{text}")

    def _text(self, text: str | None) -> None:
        text = clean(text or "")
        if self.preformatted:
            for number, line in enumerate(text.split("\n")):
                self.gap = "\n" * min(2, self.gap.count("\n") + 1) if number else self.gap
                code = line.rstrip()
                if code:
                    indentation = "" if self.parts else self.gap.rpartition("\n")[2]
                    self._word(indentation + code)
                self.gap += line[len(code) :]
            return
        text = _SPACE.sub(" ", text)
        if text.startswith(" ") and not self.gap:
            self.gap = " "
        if text.strip(" "):
            self._word(text.strip(" "))
            self.gap = " " if text.endswith(" ") else ""

    def _word(self, text: str) -> None:
        if not text:
            return
        if self.parts:
            self.parts.append(self.gap)
        self.parts.append(self.marker + text)
        self.gap = self.marker = ""

    def _flush(self, kind: str = "") -> None:
        """Ends the block that is open, if it has words."""
        text = "".join(self.parts)
        self.parts, self.gap = [], ""
        if text:
            self._end(self.between or "\n")
            kind = kind or self.kinds[-1]
            if kind in HEADINGS:
                self.place, self.fragment = quoted(text), self.anchor
            self.texts.append(Text(text, kind, self.place, self.fragment))
            self.between = ""

    def _end(self, gap: str) -> None:
        if self.texts:
            last = self.texts.pop()
            self.texts.append(last._replace(text=last.text + gap))


def _tag(node: Any) -> str:
    """The tag by which an element is laid out."""
    tag = str(node.tag)
    if tag in _CELLS and node.getparent().tag != "tr":
        return "div"
    style = node.get("style")
    inline = style is not None and tag in _BLOCKS and _INLINE.search(style.lower())
    return "span" if inline else tag


def whole_number(text: str | None, default: int) -> int:
    return int(text) if text and re.fullmatch(r"-?\d{1,6}", text) else default


def _span(node: Any, name: str, most: int) -> int:
    return min(most, max(1, whole_number(node.get(name), 1)))


def _hidden(node: Any) -> bool:
    style = (node.get("style") or "").replace(" ", "").lower()
    return (
        node.get("hidden") is not None
        or node.get("aria-hidden") == "true"
        or node.get("role") == "navigation"
        or "display:none" in style
        or (node.tag == "a" and (node.text or "").strip() in _PERMALINKS)
    )


def _anchor(node: Any) -> str:
    """Returns the id of a heading, or the id of the section that it opens."""
    anchor, parent = node.get("id"), node.getparent()
    if anchor is None and parent is not None and node.getprevious() is None:
        anchor = parent.get("id") if parent.tag in ("section", "div", "article") else None
    return anchor if anchor and re.fullmatch(r"[\w.:-]{1,100}", anchor) else ""


def formula(node: Any, levels: int = _DEEPEST) -> str:
    """A formula of MathML or of Word in one line: (a+b)/2, x^2, √(n)."""
    name = str(node.tag).rpartition("}")[2] if isinstance(node.tag, str) else "annotation"
    if name.startswith("annotation") or name.endswith("Pr") or not levels:
        return ""
    text = node.text or ""
    parts = [formula(part, levels - 1) for part in node if not str(part.tag).endswith("Pr")]
    match name, parts:
        case "mfrac" | "f", [above, below]:
            return f"{_grouped(above)}/{_grouped(below)}"
        case "msup" | "sSup", [base, high]:
            return base + _signed("^", high)
        case "msub" | "sSub", [base, low]:
            return base + _signed("_", low)
        case "msubsup" | "sSubSup", [base, low, high]:
            return base + _signed("_", low) + _signed("^", high)
        case "msqrt", _:
            return f"√({''.join(parts)})"
        case ("mroot", [inner, degree]) | ("rad", [degree, inner]):
            return f"{degree}√({inner})"
        case "nary", [low, high, inner]:
            signs = [
                str(value) for sign in node.iterfind("{*}naryPr/{*}chr") for value in sign.values()
            ]
            return f"{(signs or ['∫'])[0]}{_signed('_', low)}{_signed('^', high)} {inner}"
        case "d", _:
            return f"({', '.join(parts)})"
        case "t", _:
            return text
    return clean(text).strip() + "".join(parts) or clean(node.get("alttext") or "")


def _signed(sign: str, text: str) -> str:
    return f"{sign}{_grouped(text)}" if text else ""


def _grouped(text: str) -> str:
    """A part of a formula, in parentheses unless it is a word or a number."""
    return text if re.fullmatch(r"[\w.,]*", text) else f"({text})"
