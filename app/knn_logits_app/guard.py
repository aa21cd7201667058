"""The outermost layer of the server: how large requests may be, and which there are."""

from __future__ import annotations

from typing import Any


def middleware() -> list[Any]:
    """What a FastAPI app is given."""
    return []
