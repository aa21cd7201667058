"""Reads Word documents, presentations and rich text.

mammoth turns a .docx into HTML, which `markup` reads. mammoth handles footnotes, text boxes and
tracked changes. lxml reads the slides of a .pptx, since python-pptx would load every film in it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from knn_logits.corpus.parsers.blocks import (
    Block,
    Part,
    RefusedError,
    clean,
    member,
    opened_zip,
)
from knn_logits.corpus.parsers.markup import blocks_of

_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SLIDES = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_PACKAGE = "{http://schemas.openxmlformats.org/package/2006/relationships}"
_OLE = b"\xd0\xcf\x11\xe0"


def read_docx(path: Path, encoding: str | None) -> Iterator[Part]:
    """Reads a Word document, one block for each heading."""
    del encoding
    _check_office(path)
    with opened_zip(path):
        pass
    import mammoth

    no_pictures = mammoth.images.img_element(lambda _: {})
    # A document must not name files of this machine.
    options = {"convert_image": no_pictures, "external_file_access": False}
    try:
        with path.open("rb") as file:
            html = mammoth.convert_to_html(file, **options).value
    except (KeyError, ValueError, OSError, BadZipFile, AttributeError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise RefusedError(f"damaged: {reason}; save it anew") from None
    except Exception as error:
        if isinstance(error, (MemoryError, RecursionError)):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise RefusedError(f"damaged: {reason}; save it anew") from None
    yield from blocks_of(html)[1]


def read_pptx(path: Path, encoding: str | None) -> Iterator[Part]:
    """Reads a presentation, one block for each slide with its notes."""
    del encoding
    _check_office(path)
    with opened_zip(path) as archive:
        main = "ppt/presentation.xml"
        relations = _relations(archive, main)
        listed = parse_xml(member(archive, main)).iter(f"{_SLIDES}sldId")
        slides = [relations.get(one.get(f"{_RELATION}id", ""), ("", ""))[1] for one in listed]
        for number, name in enumerate(slides, start=1):
            if not name:
                continue
            lines = list(_paragraphs(parse_xml(member(archive, name))))
            for kind, notes in _relations(archive, name).values():
                if kind.endswith("/notesSlide") and notes in archive.namelist():
                    lines += list(_paragraphs(parse_xml(member(archive, notes)), notes=True))
            text = "\n".join(lines)
            if text.strip():
                place = f"slide {number}"
                yield Block(clean(text) + "\n\n", place, "", number / len(slides))


def read_rtf(path: Path, encoding: str | None) -> Iterator[Part]:
    """Reads rich text."""
    from striprtf import striprtf

    data = path.read_bytes()
    if not data.lstrip().startswith(b"{\\rtf"):
        raise RefusedError("not rich text: it does not begin with {\\rtf; rename it to .txt")
    # The file writes all characters but ASCII as escapes, in an encoding that it names.
    convert: Any = striprtf.rtf_to_text
    text = convert(data.decode(encoding or "cp1252", "replace"), errors="replace")
    yield Block(clean(text))


def parse_xml(data: bytes) -> Any:
    """Parses XML. It may not define entities of its own, and nothing is loaded from elsewhere.

    Raises:
        RefusedError: when the data is not such XML.
    """
    from lxml import etree

    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
    )
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise RefusedError(f"damaged: {str(error)[:120]}; save it anew") from None
    doctype = root.getroottree().docinfo.internalDTD
    if doctype is not None and any(True for _ in doctype.iterentities()):
        raise RefusedError("it defines XML entities of its own, as an XML bomb does; save it anew")
    return root


def _check_office(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) == _OLE:
            raise RefusedError(
                "encrypted, or in an older Office format: save it without a password, in the newer "
                "format"
            )


def _relations(archive: ZipFile, name: str) -> dict[str, tuple[str, str]]:
    """Returns the kinds and names of the files that a file of the archive refers to, by id."""
    folder, base = posixpath.split(name)
    listed = f"{folder}/_rels/{base}.rels"
    if listed not in archive.namelist():
        return {}
    found = {}
    for one in parse_xml(member(archive, listed)).iter(f"{_PACKAGE}Relationship"):
        if one.get("TargetMode") != "External":
            target = posixpath.normpath(posixpath.join(folder, one.get("Target", "")))
            absolute = one.get("Target", "").startswith("/")
            target = one.get("Target", "").lstrip("/") if absolute else target
            found[one.get("Id", "")] = (one.get("Type", ""), target)
    return found


def _paragraphs(slide: Any, *, notes: bool = False) -> Iterator[str]:
    """Yields the paragraphs of a slide in order. The cells of a table's row are joined by tabs."""
    for body in slide.iter(f"{_SLIDES}txBody", f"{_DRAWING}tr"):
        if notes and _placeholder(body) != "body":
            continue  # these are the slide's number, its date and a picture of it
        if body.tag == f"{_DRAWING}tr":
            cells = (" ".join(_lines(cell)) for cell in body.iter(f"{_DRAWING}tc"))
            yield "\t".join(cells)
        elif _placeholder(body) not in ("sldNum", "dt", "ftr"):
            yield from _lines(body)


def _placeholder(body: Any) -> str:
    shape = body.getparent()
    found = None if shape is None else shape.find(f".//{_SLIDES}ph")
    return "" if found is None else str(found.get("type", "body"))


def _lines(body: Any) -> Iterator[str]:
    for paragraph in body.iter(f"{_DRAWING}p"):
        parts = []
        for one in paragraph.iter(f"{_DRAWING}t", f"{_DRAWING}br", f"{_DRAWING}tab"):
            parts.append(one.text or "" if one.tag == f"{_DRAWING}t" else " ")
        text = "".join(parts).strip()
        if text:
            yield text
