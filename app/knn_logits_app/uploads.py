"""Uploaded files by handles: the server's folders are nobody's business.

gradio answers an upload with the file's whole path, and takes any path or web address as a file
afterwards. Here a page is told the end of the path only, and whatever else it sends as a file is
refused: the server would fetch an address from wherever it stands.
"""

from __future__ import annotations

import json
import re
from typing import Any

_HANDLE = re.compile(r"[0-9a-f]{16,128}/(?!\.{1,2}$)[^/\\\x00]{1,255}")


def handles(answer: bytes, folder: str) -> bytes:
    """What gradio answers to an upload, with handles in place of paths.

    Args:
        answer: JSON, a list of paths.
        folder: Where uploads are.
    """
    start = folder.rstrip("/\\") + "/"
    names = [str(one).replace("\\", "/") for one in json.loads(answer)]
    return json.dumps([one.removeprefix(start.replace("\\", "/")) for one in names]).encode()


def with_paths(value: Any, folder: str) -> Any:
    """What a page sends, with paths in place of handles.

    Args:
        value: Decoded JSON.
        folder: Where uploads are.

    Raises:
        ValueError: when something is given as a file that was not uploaded here.
    """
    if isinstance(value, list):
        return [with_paths(one, folder) for one in value]
    if not isinstance(value, dict):
        return value
    if not _is_file(value):
        return {key: with_paths(one, folder) for key, one in value.items()}
    handle = value.get("path")
    if (
        not isinstance(handle, str)
        or not _HANDLE.fullmatch(handle)
        or handle.endswith(("/.", "/.."))
    ):
        raise ValueError("that is no file that was uploaded here")
    # Its address is the page's own affair; nothing is to be fetched from there.
    return {**value, "path": f"{folder.rstrip('/')}/{handle}", "url": None}


def _is_file(value: dict[str, Any]) -> bool:
    meta = value.get("meta")
    marked = isinstance(meta, dict) and "_type" in meta
    return marked or "path" in value or "url" in value
