"""Reads EPUB, a zip archive of web pages, in the order of its spine."""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from knn_logits.corpus.blocks import quoted
from knn_logits.corpus.parsers import Begin, Left, Part
from knn_logits.corpus.parsers.archives import opened_zip, parse_xml
from knn_logits.corpus.parsers.markup import source_of, texts_of
from knn_logits.corpus.rows import UnreadableError

_CONTAINER = "{urn:oasis:names:tc:opendocument:xmlns:container}"
_PACKAGE = "{http://www.idpf.org/2007/opf}"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_PROTECTION = "META-INF/encryption.xml"
_OF_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_METHOD = "{http://www.w3.org/2001/04/xmlenc#}EncryptionMethod"


def read(stream: Any) -> Iterator[Part]:
    """Reads a book, whose places are its headings."""
    with opened_zip(stream) as archive:
        names = {_plain(name): name for name in archive.namelist()}
        if _PROTECTION in names:
            methods = parse_xml(archive.read(_PROTECTION)).iter(_METHOD)
            if any(method.get("Algorithm") not in _OF_FONTS for method in methods):
                raise UnreadableError("protected by DRM: use an unprotected copy")
        container = parse_xml(archive.read("META-INF/container.xml"))
        root = next(container.iter(f"{_CONTAINER}rootfile"), None)
        name = "" if root is None else root.get("full-path", "")
        package = parse_xml(archive.read(name))
        title = next((node.text for node in package.iter(_TITLE) if node.text), None)
        yield Begin(None if title is None else " ".join(title.split())[:300])
        items = {
            node.get("id"): unquote(node.get("href", "").partition("#")[0])
            for node in package.iter(f"{_PACKAGE}item")
        }
        spine = [items.get(node.get("idref"), "") for node in package.iter(f"{_PACKAGE}itemref")]
        place = ""
        for number, href in enumerate(spine, start=1):
            page = posixpath.normpath(posixpath.join(posixpath.dirname(name), href))
            if _plain(page) not in names:
                yield Left(f"part {number}", f"it has no {page[:80]}")
                continue
            page = names[_plain(page)]
            title, texts = texts_of(source_of(archive.read(page)))
            for text in texts:
                place = text.place or place or quoted(title or "") or f"part {number}"
                yield text._replace(place=place, fragment="")


def _plain(name: str) -> str:
    """A file's name with its accents in one form. A list of files may have them in another."""
    return unicodedata.normalize("NFC", name)
