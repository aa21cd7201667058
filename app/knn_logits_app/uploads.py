"""Replaces the paths of uploaded files by handles, so that no page learns the server's folders.

gradio answers an upload with the file's whole path. Afterwards it accepts any path or web address
as a file, and would fetch an address from the server's network. So a page gets only the end of the
path, and everything else that it sends as a file is refused.
"""

from __future__ import annotations

import json
import re
from typing import Any

_HANDLE = re.compile(r"[0-9a-f]{16,128}/(?!\.{1,2}$)[^/\\\x00]{1,255}")


def handles(answer: bytes, folder: str) -> bytes:
    """Replaces paths by handles in gradio's answer to an upload.

    Args:
        answer: The answer, a list of paths as JSON.
        folder: The folder of uploaded files.
    """
    start = folder.rstrip("/\\") + "/"
    names = [str(one).replace("\\", "/") for one in json.loads(answer)]
    return json.dumps([one.removeprefix(start.replace("\\", "/")) for one in names]).encode()


def with_paths(value: Any, folder: str) -> Any:
    """Replaces handles by paths in a request of the page.

    Args:
        value: The decoded JSON of the request.
        folder: The folder of uploaded files.

    Raises:
        ValueError: when the request names a file that was not uploaded here.
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
        raise ValueError("this file was not uploaded here: upload it first")
    # gradio would fetch a web address, so it is dropped.
    return {**value, "path": f"{folder.rstrip('/')}/{handle}", "url": None}


def _is_file(value: dict[str, Any]) -> bool:
    meta = value.get("meta")
    marked = isinstance(meta, dict) and "_type" in meta
    return marked or "path" in value or "url" in value
