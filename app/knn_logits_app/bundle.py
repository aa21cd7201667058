"""Bundles the style and the scripts of `assets/` for the page, and for answers that are saved.

The page contains all of them, so the browser loads nothing from elsewhere.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
# The scripts, each after those that it needs.
_SCRIPTS = (
    "dom", "trace", "words", "live", "answer", "panel", "documents", "take", "page", "mount",
    "alone",
)  # fmt: skip
_NAMES = (
    "mount, drawer, controls, gates, alone, tries, fromLink, runLink, read, unpackLive, mixed, "
    "turnsOf, wholeTrace"
)


@cache
def script() -> str:
    """Returns the JavaScript that draws answers. It defines the object `knnLogits`."""
    form = json.dumps(_form()).replace("</", "<\\/")
    parts = "\n".join(_read(f"{name}.js") for name in _SCRIPTS)
    return (
        f"window.knnLogits = (() => {{\nconst ALONE = {form};\n{parts}\n"
        f"return {{ {_NAMES} }};\n}})();"
    )


@cache
def style() -> str:
    """Returns the CSS of answers."""
    return _read("answer.css")


def head() -> str:
    """Returns the elements for the head of the page."""
    return (
        # This copy of the style is for answers that are saved as pages. The page itself gets its
        # style through gradio, so that it has precedence over gradio's own.
        f'<style id="kl-style" media="not all">{style()}</style>'
        f'<script id="kl-script">{script()}</script>'
    )


def alone(content: str) -> str:
    """Returns an answer as a whole HTML document, which loads nothing from elsewhere.

    Args:
        content: The JSON of `views.frame`.
    """
    parts = {"style": style(), "content": content, "script": script()}
    return re.sub(r"\[(style|content|script)\]", lambda found: parts[found[1]], _form())


def _form() -> str:
    return _read("alone.html")


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
