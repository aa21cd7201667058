"""Reads presentations with lxml, slide by slide with the notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from knn_logits.corpus.parsers import Text, clean
from knn_logits.corpus.parsers.archives import opened_zip, parse_xml, relations_of

_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SLIDES = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_TITLES = ("title", "ctrTitle")


def read(stream: Any) -> Iterator[Text]:
    """Reads a presentation. python-pptx would load every film."""
    with opened_zip(stream) as archive:
        main = "ppt/presentation.xml"
        relations = relations_of(archive, main)
        listed = parse_xml(archive.read(main)).iter(f"{_SLIDES}sldId")
        slides = [relations.get(node.get(f"{_RELATION}id", ""), ("", ""))[1] for node in listed]
        for number, name in enumerate(slides, start=1):
            if not name:
                continue
            lines = list(_lines(parse_xml(archive.read(name))))
            for kind, notes in relations_of(archive, name).values():
                if kind.endswith("/notesSlide") and notes in archive.namelist():
                    lines += _lines(parse_xml(archive.read(notes)), notes=True)
            for row, (kind, text) in enumerate(lines, start=1):
                gap = "\n\n" if row == len(lines) else "\n"
                yield Text(text + gap, kind, f"slide {number}")


def _lines(slide: Any, *, notes: bool = False) -> Iterator[tuple[str, str]]:
    """Yields the paragraphs of a slide in order, and its tables row by row."""
    for body in slide.iter(f"{_SLIDES}txBody", f"{_DRAWING}tbl"):
        place = _placeholder(body)
        if body.tag == f"{_DRAWING}tbl":
            yield from _rows(body)
        elif place not in ("sldNum", "dt", "ftr") and (not notes or place == "body"):
            for text in _paragraphs(body):
                yield "h2" if place in _TITLES else "p", text


def _rows(table: Any) -> Iterator[tuple[str, str]]:
    """The cells of each row. A merged cell is repeated."""
    above: list[str] = []
    for row in table.iter(f"{_DRAWING}tr"):
        cells: list[str] = []
        for column, cell in enumerate(row.iter(f"{_DRAWING}tc")):
            text = " ".join(_paragraphs(cell))
            if cell.get("vMerge") in ("1", "true") and column < len(above):
                text = above[column]
            elif cell.get("hMerge") in ("1", "true") and cells:
                text = cells[-1]
            cells.append(text)
        if any(cells):
            yield "tr" if above else "th", "\t".join(cells)
        above = cells


def _placeholder(body: Any) -> str:
    shape = body.getparent()
    placeholder = None if shape is None else shape.find(f".//{_SLIDES}ph")
    return "" if placeholder is None else str(placeholder.get("type", "body"))


def _paragraphs(body: Any) -> Iterator[str]:
    for paragraph in body.iter(f"{_DRAWING}p"):
        runs = paragraph.iter(f"{_DRAWING}t", f"{_DRAWING}br", f"{_DRAWING}tab")
        text = "".join(run.text or "" if run.tag == f"{_DRAWING}t" else " " for run in runs)
        if clean(text).strip():
            yield clean(text).strip()
