"""Reads Word documents with mammoth, and writes out the equations and list numbers it drops."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from zipfile import ZipFile

from knn_logits.corpus.parsers import Text
from knn_logits.corpus.parsers.archives import member, opened_zip, parse_xml
from knn_logits.corpus.parsers.markup import grouped, texts_of
from knn_logits.corpus.rows import Schema, UnreadableError, first_line

_BODY = re.compile(r"word/(?:document|footnotes|endnotes)\d*\.xml")
# The style of a list item whose number was written into its text.
_ITEM = "NumberedItem"
_STYLES = f"p.{_ITEM} => li:fresh"
_FALSE = ("0", "false", "off", "none")
_ROMAN: tuple[tuple[int, str], ...] = (
    (1000, "m"),
    (900, "cm"),
    (500, "d"),
    (400, "cd"),
    (100, "c"),
    (90, "xc"),
    (50, "l"),
)
_ROMAN += ((40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))


def read(stream: Any, schema: Schema) -> Iterator[Text]:
    """Reads a document without its hidden text, comments, headers and tracked deletions."""
    del schema
    import mammoth

    with opened_zip(stream) as archive:
        copy = _written_out(archive)
    no_pictures = mammoth.images.img_element(lambda _: {})
    # A document must not name files of this machine.
    options = {"convert_image": no_pictures, "external_file_access": False, "style_map": _STYLES}
    try:
        html = mammoth.convert_to_html(copy, **options).value
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # a damaged document may make mammoth raise any exception
        raise UnreadableError(f"damaged: {first_line(error)[:120]}; save it again") from None
    yield from texts_of(html)[1]


def _written_out(archive: ZipFile) -> io.BytesIO:
    """Copies the XML of a document, with the changes."""
    from lxml import etree

    copy, numbers = io.BytesIO(), _Numbers.of(archive)
    with ZipFile(copy, "w") as changed:
        for name in archive.namelist():
            if not name.endswith((".xml", ".rels")):
                continue
            data = member(archive, name)
            if _BODY.fullmatch(name):
                root = parse_xml(data)
                for run in [*root.iter("{*}r")]:
                    if _is_on(run.find("{*}rPr/{*}vanish")) and run.getparent() is not None:
                        run.getparent().remove(run)
                for simple in [*root.iter("{*}fldSimple")]:  # mammoth drops what they show
                    for part in simple:
                        simple.addprevious(part)
                    simple.getparent().remove(simple)
                for formula in [*root.iter("{*}oMathPara"), *root.iter("{*}oMath")]:
                    paragraph = next(formula.iterancestors("{*}p"), None)
                    if paragraph is not None:
                        written = _run(paragraph, _formula(formula))
                        formula.getparent().replace(formula, written)
                for paragraph in root.iter("{*}p"):
                    numbers.write(paragraph)
                data = etree.tostring(root)
            changed.writestr(name, data)
    copy.seek(0)
    return copy


def _value(node: Any, name: str = "val") -> str:
    """An attribute of Word's namespace, which has two forms."""
    found = () if node is None else node.items()
    return next((value for key, value in found if key.rpartition("}")[2] == name), "")


def _is_on(node: Any) -> bool:
    return node is not None and _value(node) not in _FALSE


def _run(paragraph: Any, text: str) -> Any:
    from lxml import etree

    space = paragraph.tag.rpartition("}")[0] + "}"
    run = etree.Element(f"{space}r")
    etree.SubElement(run, f"{space}t").text = text
    return run


def _formula(node: Any) -> str:
    """A formula in one line: (a+b)/2, x^2, √(n)."""
    name = str(node.tag).rpartition("}")[2]
    if name == "t":
        return node.text or ""
    parts = {str(part.tag).rpartition("}")[2]: part for part in node}
    inner = {key: _formula(part) for key, part in parts.items() if not key.endswith("Pr")}
    low, high = (_raised(sign, inner.get(key, "")) for sign, key in (("_", "sub"), ("^", "sup")))
    match name:
        case "f":
            return f"{grouped(inner.get('num', ''))}/{grouped(inner.get('den', ''))}"
        case "sSup" | "sSub" | "sSubSup":
            return inner.get("e", "") + low + high
        case "rad":
            return f"{inner.get('deg', '')}√({inner.get('e', '')})"
        case "nary":
            sign = _value(node.find("{*}naryPr/{*}chr")) or "∫"
            return f"{sign}{low}{high} {inner.get('e', '')}"
        case "d":
            return f"({', '.join(_formula(part) for part in node.iterchildren('{*}e'))})"
    return "".join(_formula(part) for part in node)


def _raised(sign: str, text: str) -> str:
    return f"{sign}{grouped(text)}" if text else ""


@dataclass
class _Numbers:
    """Counts the numbered paragraphs of a document, as Word does when it shows them."""

    lists: dict[str, str] = field(default_factory=dict)  # the format of each list
    levels: dict[tuple[str, str], tuple[str, str, int]] = field(default_factory=dict)
    styles: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    counts: Any = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def of(cls, archive: ZipFile) -> _Numbers:
        numbers = cls()
        names = archive.namelist()
        if "word/numbering.xml" in names:
            root = parse_xml(member(archive, "word/numbering.xml"))
            for one in root.iter("{*}num"):
                numbers.lists[_value(one, "numId")] = _value(one.find("{*}abstractNumId"))
            for one in root.iter("{*}abstractNum"):
                for level in one.iter("{*}lvl"):
                    start = _value(level.find("{*}start"))
                    numbers.levels[_value(one, "abstractNumId"), _value(level, "ilvl")] = (
                        _value(level.find("{*}numFmt")),
                        _value(level.find("{*}lvlText")),
                        int(start) if re.fullmatch(r"\d{1,6}", start) else 1,
                    )
        if "word/styles.xml" in names:
            for style in parse_xml(member(archive, "word/styles.xml")).iter("{*}style"):
                properties = style.find("{*}pPr/{*}numPr")
                name = _value(style.find("{*}name")).lower()
                numbers.styles[_value(style, "styleId")] = (*_numbered(properties), name)
        return numbers

    def write(self, paragraph: Any) -> None:
        """Writes a paragraph's number before its text, unless it has a bullet."""
        properties = paragraph.find("{*}pPr")
        if properties is None:
            return
        own, style = properties.find("{*}numPr"), properties.find("{*}pStyle")
        number, level, name = self.styles.get(_value(style), ("", "", ""))
        given, deeper = _numbered(own)
        number, level = given or number, deeper or level or "0"
        kind = self.lists.get(number, "")
        form, text, start = self.levels.get((kind, level), ("bullet", "", 1))
        if form in ("bullet", "none"):
            return
        counts = self.counts[kind]
        counts[level] = counts.get(level, start - 1) + 1
        for other in [other for other in counts if other > level]:
            del counts[other]
        for other in {f"{int(digit) - 1}" for digit in re.findall(r"%(\d)", text)}:
            form, _, start = self.levels.get((kind, other), ("decimal", "", 1))
            shown = _shown(counts.setdefault(other, start), form)
            text = text.replace(f"%{int(other) + 1}", shown)
        if own is not None:
            properties.remove(own)
        properties.addnext(_run(paragraph, f"{text} "))
        if not name.startswith(("heading", "title")):
            style = style if style is not None else _added_style(properties)
            for key in style.attrib:
                style.set(key, _ITEM)


def _numbered(properties: Any) -> tuple[str, str]:
    """The list and the level of a paragraph or a style."""
    if properties is None:
        return "", ""
    return _value(properties.find("{*}numId")), _value(properties.find("{*}ilvl"))


def _added_style(properties: Any) -> Any:
    from lxml import etree

    space = properties.tag.rpartition("}")[0] + "}"
    style = etree.Element(f"{space}pStyle", {f"{space}val": ""})
    properties.insert(0, style)
    return style


def _shown(number: int, form: str) -> str:
    shown = str(number)
    if form.endswith("Letter") and number > 0:
        shown = chr(ord("a") + (number - 1) % 26) * (1 + (number - 1) // 26 % 9)
    elif form.endswith("Roman"):
        shown, left = "", number % 5000
        for value, letters in _ROMAN:
            shown += letters * (left // value)
            left %= value
    return shown.upper() if form.startswith("upper") else shown
