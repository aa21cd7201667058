"""Sizes and times, as people read and write them."""

from __future__ import annotations

import re

from knn_logits.errors import ConfigError


def in_bytes(size: int) -> str:
    """Formats a size for people: 512 bytes, 3.1 MB."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} bytes"


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def bytes_of(size: str) -> int:
    """Reads a size such as 4GB, 500MB, 1.5GiB or 1000000.

    Raises:
        ConfigError: when it is no such size.
    """
    found = _SIZE.fullmatch(size.strip())
    number = 0
    if found is not None:
        unit = 1024 if found[3] else 1000
        power = " kmgt".index(found[2].lower() or " ")
        number = int(float(found[1]) * unit**power)
    if number < 1:
        raise ConfigError(f"{size!r} is no size: give one such as 4GB or 500MB")
    return number


def in_time(seconds: float) -> str:
    """Formats a time for people: 4 s, 12 min, 3.5 h, 9 days."""
    if seconds < 100:
        return f"{max(1.0, seconds):.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:,.0f} days"
