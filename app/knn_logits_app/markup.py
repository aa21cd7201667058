"""Makes text safe for HTML, and numbers easy to read."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import urlsplit

# The least share of each level, and its words in the legend. The page shows the level by the colour
# and by the thickness of the line.
LEVELS = (
    (0.75, "75% and more"),
    (0.5, "50% to 75%"),
    (0.25, "25% to 50%"),
    (0.05, "5% to 25%"),
)
# These characters are kept: white space, and the joiners that many scripts need.
_KEPT = "\n\t \u200c\u200d"


def text(value: object) -> str:
    """Escapes a value for HTML text or an attribute, and removes control characters."""
    shown = "".join(one for one in str(value) if one.isprintable() or one in _KEPT)
    return escape(shown, quote=True)


def link(uri: str | None) -> str:
    """Returns a link to a document, or an empty string if its URI is not a web address."""
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
    """Returns the level of a share, from 0 (not shown) to 4."""
    return next((4 - place for place, (least, _) in enumerate(LEVELS) if share >= least), 0)


def percent(share: float) -> str:
    """Formats a share as a percentage. A small share is not rounded to 0%."""
    if 0.0 < share < 0.005:
        return "under 1%"
    return f"{share:.0%}"


def count(number: int, of: str) -> str:
    """Formats a number with its noun, in the singular or plural."""
    return f"{number:,} {of}" + ("" if number == 1 else "s")


def number(value: float) -> str:
    """Formats a probability or a distance with few digits."""
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{value:.1e}"


def tries(beginnings: Sequence[str]) -> str:
    """Shows beginnings of a text as buttons. A click continues the text."""
    shown = "".join(
        f'<button type="button" class="kl-chip" data-try="{text(one)}">{text(one)} …</button>'
        for one in beginnings
    )
    return f'<p class="kl-tries">Try: {shown}</p>' if shown else ""
