"""Reads EPUB and Word documents, which are zip archives of XML that strangers made.

Mammoth reads Word documents; the equations and list numbers that it drops are written out before.
"""

from __future__ import annotations

import io
import posixpath
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote
from zipfile import ZipFile

from knn_logits.corpus.documents import quoted
from knn_logits.corpus.parsers import Begin, Left, Part, Text
from knn_logits.corpus.parsers.markup import formula, source_of, texts_of, whole_number
from knn_logits.corpus.rows import UnreadableError

_OLE = b"\xd0\xcf\x11\xe0"
# Text and XML pack to between a fifth and a twentieth. A file that packs far better is hostile.
_MOST_UNPACKED, _LEAST_SUSPECT, _MOST_RATIO = 1 << 30, 64 << 20, 200
_PROTECTION = "META-INF/encryption.xml"
_OF_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_BODY = re.compile(r"word/(?:document|footnotes|endnotes)\d*\.xml")
_FALSE = ("0", "false", "off", "none")
_VALUES = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
_ROMAN = ("m", "cm", "d", "cd", "c", "xc", "l", "xl", "x", "ix", "v", "iv", "i")


def opened_zip(stream: Any) -> ZipFile:
    """Opens a zip archive, and refuses a bomb by its directory, which bounds what is unpacked."""
    if stream.read(4) == _OLE:
        raise UnreadableError(
            "encrypted, or in an older Office format: save it without a password, in the newer "
            "format"
        )
    archive = ZipFile(stream)
    size = sum(info.file_size for info in archive.infolist())
    packed = max(1, sum(info.compress_size for info in archive.infolist()))
    if size > _MOST_UNPACKED or (size > _LEAST_SUSPECT and size > _MOST_RATIO * packed):
        raise UnreadableError(
            f"its {packed:,} bytes would unpack to {size:,}, as in a zip bomb; save it again if "
            "you trust it"
        )
    return archive


def parse_xml(data: bytes) -> Any:
    """Parses XML, which may define no entities of its own. Nothing is loaded from elsewhere."""
    from lxml import etree

    root = etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True))
    doctype = root.getroottree().docinfo.internalDTD
    if doctype is not None and any(True for _ in doctype.iterentities()):
        raise UnreadableError("it defines XML entities, as in an XML bomb; save it again")
    return root


def read_epub(stream: Any) -> Iterator[Part]:
    """Reads a book, whose places are its headings."""
    with opened_zip(stream) as archive:
        names = {_composed(name): name for name in archive.namelist()}
        if _PROTECTION in names:
            methods = parse_xml(archive.read(_PROTECTION)).iter("{*}EncryptionMethod")
            if any(method.get("Algorithm") not in _OF_FONTS for method in methods):
                raise UnreadableError("protected by DRM: use an unprotected copy")
        container = parse_xml(archive.read("META-INF/container.xml"))
        name = next((node.get("full-path", "") for node in container.iter("{*}rootfile")), "")
        package = parse_xml(archive.read(name))
        title = " ".join((package.findtext(".//{*}title") or "").split())[:300]
        yield Begin(title or None)
        hrefs = {node.get("id"): node.get("href", "") for node in package.iter("{*}item")}
        place = ""
        for number, node in enumerate(package.iter("{*}itemref"), start=1):
            href = unquote(hrefs.get(node.get("idref"), "").partition("#")[0])
            page = posixpath.normpath(posixpath.join(posixpath.dirname(name), href))
            if _composed(page) not in names:
                yield Left(f"part {number}", f"it has no {page[:80]}")
                continue
            heading, texts = texts_of(source_of(archive.read(names[_composed(page)])))
            for text in texts:
                place = text.place or place or quoted(heading or "") or f"part {number}"
                yield text._replace(place=place, fragment="")


def _composed(name: str) -> str:
    """A file's name with its accents in one form. A list of files may have them in another."""
    return unicodedata.normalize("NFC", name)


def read_docx(stream: Any) -> Iterator[Text]:
    """Reads a document without its hidden text, comments, headers and tracked deletions."""
    import mammoth

    with opened_zip(stream) as archive:
        copy = _written_out(archive)
    no_pictures = mammoth.images.img_element(lambda _: {})
    # A document must not name files of this machine.
    options = {"convert_image": no_pictures, "external_file_access": False}
    yield from texts_of(mammoth.convert_to_html(copy, **options).value, numbered=True)[1]


def _written_out(archive: ZipFile) -> io.BytesIO:
    from lxml import etree

    copy, numbers = io.BytesIO(), _Numbers(archive)
    with ZipFile(copy, "w") as changed:
        for name in archive.namelist():
            if not name.endswith((".xml", ".rels")):
                continue
            data = archive.read(name)
            if _BODY.fullmatch(name):
                root = parse_xml(data)
                for run in [*root.iter("{*}r")]:
                    hidden, parent = run.find("{*}rPr/{*}vanish"), run.getparent()
                    if hidden is not None and _value(hidden) not in _FALSE and parent is not None:
                        parent.remove(run)
                for simple in [*root.iter("{*}fldSimple")]:  # mammoth drops what they show
                    for part in simple:
                        simple.addprevious(part)
                    simple.getparent().remove(simple)
                for equation in [*root.iter("{*}oMathPara"), *root.iter("{*}oMath")]:
                    paragraph = next(equation.iterancestors("{*}p"), None)
                    if paragraph is not None:
                        written = _run(paragraph, formula(equation))
                        equation.getparent().replace(equation, written)
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


def _run(near: Any, text: str) -> Any:
    """A run of text in the namespace of the element `near`; Word has two namespaces."""
    from lxml import etree

    begin = near.tag.rpartition("}")[0]
    run = etree.Element(f"{begin}}}r")
    etree.SubElement(run, f"{begin}}}t").text = text
    return run


class _Numbers:
    """Counts the numbered paragraphs of a document, as Word does when it shows them."""

    def __init__(self, archive: ZipFile) -> None:
        self._lists: dict[str, str] = {}  # the format of each list
        self._levels: dict[tuple[str, str], tuple[str, str, int]] = {}
        self._styles: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, dict[str, int]] = defaultdict(dict)
        names = archive.namelist()
        if "word/numbering.xml" in names:
            root = parse_xml(archive.read("word/numbering.xml"))
            for one in root.iter("{*}num"):
                self._lists[_value(one, "numId")] = _value(one.find("{*}abstractNumId"))
            for level in root.iterfind("{*}abstractNum/{*}lvl"):
                self._levels[_value(level.getparent(), "abstractNumId"), _value(level, "ilvl")] = (
                    _value(level.find("{*}numFmt")),
                    _value(level.find("{*}lvlText")),
                    whole_number(_value(level.find("{*}start")), 1),
                )
        if "word/styles.xml" in names:
            for style in parse_xml(archive.read("word/styles.xml")).iter("{*}style"):
                self._styles[_value(style, "styleId")] = _numbered(style)

    def write(self, paragraph: Any) -> None:
        """Writes a paragraph's number before its text, unless it has a bullet."""
        properties = paragraph.find("{*}pPr")
        if properties is None:
            return
        style = _value(properties.find("{*}pStyle"))
        number, level = self._styles.get(style, ("", ""))
        given, deeper = _numbered(paragraph)
        number, level = given or number, deeper or level or "0"
        kind = self._lists.get(number, "")
        form, text, start = self._levels.get((kind, level), ("bullet", "", 1))
        if form in ("bullet", "none"):
            return
        counts = self._counts[kind]
        counts[level] = counts.get(level, start - 1) + 1
        for other in [other for other in counts if other > level]:
            del counts[other]
        for other in {f"{int(digit) - 1}" for digit in re.findall(r"%(\d)", text)}:
            form, _, start = self._levels.get((kind, other), ("decimal", "", 1))
            shown = _shown(counts.setdefault(other, start), form)
            text = text.replace(f"%{int(other) + 1}", shown)
        properties.addnext(_run(paragraph, f"{text} "))


def _numbered(node: Any) -> tuple[str, str]:
    """The list and the level of a paragraph or a style."""
    place = "{*}pPr/{*}numPr/{*}"
    return _value(node.find(f"{place}numId")), _value(node.find(f"{place}ilvl"))


def _shown(number: int, form: str) -> str:
    shown = str(number)
    if form.endswith("Letter") and number > 0:
        shown = chr(ord("a") + (number - 1) % 26) * (1 + (number - 1) // 26 % 9)
    elif form.endswith("Roman"):
        shown, left = "", number % 5000
        for value, letters in zip(_VALUES, _ROMAN, strict=True):
            shown += letters * (left // value)
            left %= value
    return shown.upper() if form.startswith("upper") else shown
