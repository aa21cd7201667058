"""Bundles the style, the scripts and the preview of the page, and of answers that are saved.

The page contains all of them, so the browser loads nothing from elsewhere.
"""

from __future__ import annotations

import json
import re
from functools import cache
from html import escape
from pathlib import Path

TITLE = "knn-logits: a language model with a memory you can read"
ASSETS = Path(__file__).parent / "assets"
ICON = ASSETS / "icon.svg"
# The scripts, each after those that it needs.
_SCRIPTS = (
    "dom", "trace", "words", "live", "answer", "panel", "documents", "settings", "take", "page",
    "mount", "chat", "alone",
)  # fmt: skip
_NAMES = (
    "mount, example, drawer, controls, know, own, alone, fromLink, runLink, unpackLive, mixed, "
    "turnsOf, chat, asked, addressOf, rendered, read, look, hint, headline, sharedWords"
)


@cache
def script(originals: str = "") -> str:
    """Returns the JavaScript that draws answers. It defines the object `knnLogits`.

    `originals` is the address under which the documents stand that have no whole address.
    """
    form = json.dumps(asset("alone.html")).replace("</", "<\\/")
    parts = "\n".join(asset(f"{name}.js") for name in _SCRIPTS)
    return (
        f"window.knnLogits = (() => {{\nconst ALONE = {form};\n"
        f"const ORIGINALS = {json.dumps(originals)};\n{parts}\n"
        f"return {{ {_NAMES} }};\n}})();"
    )


def head(originals: str = "") -> str:
    """Returns the elements for the head of the page."""
    return (
        # This copy of the style is for answers that are saved as pages. The page itself gets its
        # style through gradio, so that it has precedence over gradio's own.
        f'<style id="kl-style" media="not all">{asset("answer.css")}</style>'
        f'<script id="kl-script">{script(originals)}</script>'
    )


def alone(content: str, folded: str | None = None) -> str:
    """Returns an answer, the JSON of `views.frame`, as a whole HTML document.

    With a line in `folded` only that line is seen, until it is opened.
    """
    opening, closing = "", ""
    if folded is not None:
        opening, closing = f"<details><summary>{escape(folded)}</summary>", "</details>"
    parts = {"style": asset("answer.css"), "content": content, "script": script()}
    parts |= {"opening": opening, "closing": closing}
    names = "|".join(parts)
    return re.sub(rf"\[({names})\]", lambda match: parts[match[1]], asset("alone.html"))


@cache
def asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
