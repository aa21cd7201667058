"""Reads .docx by mammoth, .pptx by lxml (python-pptx would load every film), and rich text."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from knn_logits.corpus.parsers import Block, Part, clean
from knn_logits.corpus.parsers.markup import blocks_of
from knn_logits.corpus.rows import Schema, UnreadableError, first_line

_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SLIDES = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_PACKAGE = "{http://schemas.openxmlformats.org/package/2006/relationships}"
_OLE = b"\xd0\xcf\x11\xe0"
_MOST_UNPACKED, _MOST_MEMBERS = 1 << 30, 100_000
# Text and XML pack to between a fifth and a twentieth. A file that packs far better is hostile.
_LEAST_SUSPECT, _MOST_RATIO = 64 << 20, 200


def read_docx(path: Path, schema: Schema) -> Iterator[Part]:
    """Reads a Word document, one block for each heading."""
    del schema
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
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # a damaged document may make mammoth raise any exception
        raise UnreadableError(f"damaged: {first_line(error)[:120]}; save it again") from None
    yield from blocks_of(html)[1]


def read_pptx(path: Path, schema: Schema) -> Iterator[Part]:
    """Reads a presentation, one block for each slide with its notes."""
    del schema
    _check_office(path)
    with opened_zip(path) as archive:
        main = "ppt/presentation.xml"
        relations = _relations(archive, main)
        listed = parse_xml(member(archive, main)).iter(f"{_SLIDES}sldId")
        slides = [relations.get(node.get(f"{_RELATION}id", ""), ("", ""))[1] for node in listed]
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


_LINK = re.compile(
    r"(\{\\field\{\s{0,9}\\\*\\fldinst\{[^{}\n]{0,300}HYPERLINK\s(\"[^\"\n]{0,2000}\")\}{2}"
    r"\s{0,9}\{[^}\n]{0,4000}\}{2,3})",
    re.IGNORECASE,
)
_FONT = re.compile(r"\\f(\d{1,9})[^;\n]{0,300}?\\fcharset(\d{1,9})([^;]{1,300});")


def read_rtf(path: Path, schema: Schema) -> Iterator[Part]:
    from striprtf import striprtf

    data = path.read_bytes()
    if not data.lstrip().startswith(b"{\\rtf"):
        raise UnreadableError("not rich text: it does not begin with {\\rtf; rename it to .txt")
    # Its own patterns for links and fonts take a time that grows with the cube of a hostile file.
    striprtf.HYPERLINKS, striprtf.FONTTABLE = _LINK, _FONT
    # The file writes all characters but ASCII as escapes, in an encoding that it names.
    convert: Any = striprtf.rtf_to_text
    text = convert(data.decode(schema.encoding or "cp1252", "replace"), errors="replace")
    yield Block(clean(text))


def opened_zip(path: Path) -> ZipFile:
    """Opens a zip archive, and refuses a bomb by its directory, which bounds what is unpacked."""
    try:
        archive = ZipFile(path)
    except (BadZipFile, NotImplementedError, ValueError) as error:
        raise UnreadableError(
            f"damaged: it is not a zip archive ({error}); download it again"
        ) from None
    members = archive.infolist()
    size = sum(info.file_size for info in members)
    packed = max(1, sum(info.compress_size for info in members))
    if len(members) > _MOST_MEMBERS:
        raise UnreadableError(
            f"it holds {len(members):,} files, too many for a document; save it again"
        )
    if size > _MOST_UNPACKED or (size > _LEAST_SUSPECT and size > _MOST_RATIO * packed):
        raise UnreadableError(
            f"its {packed:,} bytes would unpack to {size:,}, as in a zip bomb; save it again if "
            "you trust it"
        )
    if any(info.flag_bits & 1 for info in members):
        raise UnreadableError("encrypted: save it without a password")
    return archive


def member(archive: ZipFile, name: str) -> bytes:
    """Reads a file of a zip archive, and refuses a damaged archive."""
    try:
        return archive.read(name)
    except KeyError:
        raise UnreadableError(f"damaged: {name[:80]} is missing; download it again") from None
    except (BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        raise UnreadableError(f"damaged: {name[:80]} cannot be unpacked ({error})") from None


def parse_xml(data: bytes) -> Any:
    """Parses XML, which may define no entities of its own. Nothing is loaded from elsewhere."""
    from lxml import etree

    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
    )
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise UnreadableError(f"damaged: {str(error)[:120]}; save it again") from None
    doctype = root.getroottree().docinfo.internalDTD
    if doctype is not None and any(True for _ in doctype.iterentities()):
        raise UnreadableError("it defines XML entities, as in an XML bomb; save it again")
    return root


def _check_office(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) == _OLE:
            raise UnreadableError(
                "encrypted, or in an older Office format: save it without a password, in the newer "
                "format"
            )


def _relations(archive: ZipFile, name: str) -> dict[str, tuple[str, str]]:
    """Returns the kinds and names of the files that a file of the archive refers to, by id."""
    folder, base = posixpath.split(name)
    listed = f"{folder}/_rels/{base}.rels"
    if listed not in archive.namelist():
        return {}
    relations = {}
    for node in parse_xml(member(archive, listed)).iter(f"{_PACKAGE}Relationship"):
        if node.get("TargetMode") != "External":
            target = node.get("Target", "")
            # A target that begins with / is absolute within the archive.
            relative = posixpath.normpath(posixpath.join(folder, target))
            target = target.lstrip("/") if target.startswith("/") else relative
            relations[node.get("Id", "")] = (node.get("Type", ""), target)
    return relations


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
    placeholder = None if shape is None else shape.find(f".//{_SLIDES}ph")
    return "" if placeholder is None else str(placeholder.get("type", "body"))


def _lines(body: Any) -> Iterator[str]:
    for paragraph in body.iter(f"{_DRAWING}p"):
        runs = paragraph.iter(f"{_DRAWING}t", f"{_DRAWING}br", f"{_DRAWING}tab")
        text = "".join(run.text or "" if run.tag == f"{_DRAWING}t" else " " for run in runs).strip()
        if text:
            yield text
