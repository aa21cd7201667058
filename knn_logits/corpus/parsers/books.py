"""Reads EPUB, a zip archive of web pages, in the order of its spine."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from knn_logits.corpus.parsers.blocks import (
    Begin,
    Left,
    Part,
    RefusedError,
    heading,
    member,
    opened_zip,
)
from knn_logits.corpus.parsers.markup import blocks_of
from knn_logits.corpus.parsers.office import parse_xml

_CONTAINER = "{urn:oasis:names:tc:opendocument:xmlns:container}"
_PACKAGE = "{http://www.idpf.org/2007/opf}"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_PROTECTION = "META-INF/encryption.xml"
_OF_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_METHOD = "{http://www.w3.org/2001/04/xmlenc#}EncryptionMethod"


def read(path: Path, encoding: str | None) -> Iterator[Part]:
    """Reads a book, one block for each heading."""
    del encoding  # the web pages in a book are UTF-8
    with opened_zip(path) as archive:
        names = set(archive.namelist())
        if _PROTECTION in names:
            methods = parse_xml(member(archive, _PROTECTION)).iter(_METHOD)
            if any(one.get("Algorithm") not in _OF_FONTS for one in methods):
                raise RefusedError("protected against copying: get a copy without protection")
        container = parse_xml(member(archive, "META-INF/container.xml"))
        root = next(container.iter(f"{_CONTAINER}rootfile"), None)
        name = "" if root is None else root.get("full-path", "")
        package = parse_xml(member(archive, name))
        title = next((one.text for one in package.iter(_TITLE) if one.text), None)
        yield Begin(None if title is None else " ".join(title.split())[:300])
        items = {
            one.get("id"): unquote(one.get("href", "")) for one in package.iter(f"{_PACKAGE}item")
        }
        spine = [items.get(one.get("idref"), "") for one in package.iter(f"{_PACKAGE}itemref")]
        place = ""
        for number, href in enumerate(spine, start=1):
            page = posixpath.normpath(posixpath.join(posixpath.dirname(name), href))
            if page not in names:
                yield Left(f"part {number}", f"it has no {page[:80]}")
                continue
            text = member(archive, page).decode("utf-8", "replace")
            headed, blocks = blocks_of(text)
            for block in blocks:
                place = block.place or place or heading(headed or "") or f"part {number}"
                yield replace(block, place=place, fragment="", done=number / len(spine))
