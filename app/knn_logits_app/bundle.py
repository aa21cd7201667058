"""What the browser is sent once: the style and the scripts of `assets/`; also a page of its own.

All stands in the page itself: nothing is loaded from elsewhere.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from urllib.parse import quote

ASSETS = Path(__file__).parent / "assets"
# In the order in which they use one another.
_SCRIPTS = (
    "dom", "trace", "words", "live", "answer", "panel", "documents", "take", "page", "mount",
    "alone",
)  # fmt: skip
_NAMES = (
    "mount, drawer, controls, alone, tries, fromLink, runLink, read, unpackLive, mixed, turnsOf, "
    "wholeTrace"
)
_DESCRIPTION = (
    "Write with a language model that looks every word up in a memory of documents, and see which "
    "passage each word came from."
)


@cache
def script() -> str:
    """What draws answers, as the object `knnLogits`."""
    form = json.dumps(_form()).replace("</", "<\\/")
    parts = "\n".join(_read(f"{name}.js") for name in _SCRIPTS)
    return (
        f"window.knnLogits = (() => {{\nconst ALONE = {form};\n{parts}\n"
        f"return {{ {_NAMES} }};\n}})();"
    )


@cache
def style() -> str:
    """How answers look."""
    return _read("answer.css")


def head() -> str:
    """For the head of the page."""
    icon = quote(_read("icon.svg"))
    return (
        f'<meta name="description" content="{_DESCRIPTION}">'
        f'<link rel="icon" href="data:image/svg+xml,{icon}">'
        # For pages that are saved; here gradio is given it, so that it outweighs gradio's own.
        f'<style id="kl-style" media="not all">{style()}</style>'
        f'<script id="kl-script">{script()}</script>'
    )


def alone(content: str) -> str:
    """An answer as a whole HTML document, which needs nothing from elsewhere.

    Args:
        content: From `views.frame`.
    """
    parts = {"style": style(), "content": content, "script": script()}
    return re.sub(r"\[(style|content|script)\]", lambda found: parts[found[1]], _form())


def _form() -> str:
    return _read("alone.html")


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
