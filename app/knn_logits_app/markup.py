"""Text of others as HTML, and numbers as people read them. Nothing here knows what a page shows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import urlsplit

# Least share, and what the legend says. Colour and the thickness of the line both tell it.
LEVELS = (
    (0.75, "75% and more"),
    (0.5, "50% to 75%"),
    (0.25, "25% to 50%"),
    (0.05, "5% to 25%"),
)
# White space, and what joins letters and signs in many scripts.
_KEPT = "\n\t \u200c\u200d"


def text(value: object) -> str:
    """Anything as text in HTML, also in an attribute; control characters are left out."""
    shown = "".join(one for one in str(value) if one.isprintable() or one in _KEPT)
    return escape(shown, quote=True)


def link(uri: str | None) -> str:
    """A link to where a document can be read, where that is a web address; else nothing."""
    try:
        parts = urlsplit(uri or "")
        safe = parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
    except ValueError:
        safe = False
    if not safe:
        return ""
    return (
        f'<a href="{text(uri)}" target="_blank" rel="noopener noreferrer nofollow">'
        f"open<span class='kl-sr'> the document in a new tab</span></a>"
    )


def level(share: float) -> int:
    """0 for no share worth showing, up to 4."""
    return next((4 - place for place, (least, _) in enumerate(LEVELS) if share >= least), 0)


def percent(share: float) -> str:
    """A share in words: small ones are not rounded to nothing."""
    if 0.0 < share < 0.005:
        return "under 1%"
    return f"{share:.0%}"


def count(number: int, of: str) -> str:
    """How many there are of something."""
    return f"{number:,} {of}" + ("" if number == 1 else "s")


def number(value: float) -> str:
    """A probability or a distance, short."""
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{value:.1e}"


def tries(beginnings: Sequence[str]) -> str:
    """Beginnings of a text as buttons, which the browser writes on from."""
    shown = "".join(
        f'<button type="button" class="kl-chip" data-try="{text(one)}">{text(one)} …</button>'
        for one in beginnings
    )
    return f'<p class="kl-tries">Try: {shown}</p>' if shown else ""
