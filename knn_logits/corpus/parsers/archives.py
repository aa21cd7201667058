"""Opens zip archives and XML that strangers made, as in Office files and books."""

from __future__ import annotations

from typing import Any
from zipfile import ZipFile

from knn_logits.corpus.rows import UnreadableError

_OLE = b"\xd0\xcf\x11\xe0"
# Text and XML pack to between a fifth and a twentieth. A file that packs far better is hostile.
_MOST_UNPACKED, _LEAST_SUSPECT, _MOST_RATIO = 1 << 30, 64 << 20, 200


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

    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
    )
    root = etree.fromstring(data, parser)
    doctype = root.getroottree().docinfo.internalDTD
    if doctype is not None and any(True for _ in doctype.iterentities()):
        raise UnreadableError("it defines XML entities, as in an XML bomb; save it again")
    return root
