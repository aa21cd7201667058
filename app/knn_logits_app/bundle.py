"""Bundles the style, the scripts and the preview of the page, and of answers that are saved.

The page contains all of them, so the browser loads nothing from elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import MutableMapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

TITLE = "knn-logits: a language model with a memory you can read"
DESCRIPTION = (
    "Write with a language model that looks every word up in a memory of documents, and see which "
    "passage each word came from."
)
ASSETS = Path(__file__).parent / "assets"
ICON = ASSETS / "icon.svg"
# The scripts, each after those that it needs.
_SCRIPTS = (
    "dom", "trace", "words", "live", "answer", "panel", "documents", "settings", "take", "page",
    "mount", "chat", "alone",
)  # fmt: skip
_NAMES = (
    "mount, example, drawer, controls, know, own, alone, tries, fromLink, "
    "runLink, unpackLive, mixed, turnsOf, wholeTrace, chat, asked, addressOf"
)
_TITLE_TAG = re.compile(rb"<title>[^<]*</title>")
_GRADIO_TAG = re.compile(
    rb"""(?<!\s)\s*<meta\s+(?:property|name)="(?:og|twitter):[a-z:]+"\s+content="[^"]*"\s*/?>"""
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


def page_address(scope: MutableMapping[str, Any]) -> str:
    """Returns the address of the page that a request of ASGI asks for, without its query."""
    headers = dict(scope["headers"])
    host = headers.get(b"x-forwarded-host") or headers.get(b"host") or b""
    return f"{scope['scheme']}://{host.decode('latin-1')}{scope.get('root_path', '')}/"


def with_preview(page: bytes, address: str) -> bytes:
    """Writes title, description and icon for previews of a link, in place of gradio's own."""
    start, opening, rest = page.partition(b"<head>")
    if not opening:
        return page
    metas = {
        "description": DESCRIPTION,
        "og:type": "website",
        "og:site_name": "knn-logits",
        "og:title": TITLE,
        "og:description": DESCRIPTION,
        "og:url": address,
        "twitter:card": "summary",
        "twitter:title": TITLE,
        "twitter:description": DESCRIPTION,
    }
    tags = f"<title>{escape(TITLE)}</title>"
    tags += f'<link rel="icon" href="data:image/svg+xml,{quote(asset("icon.svg"))}">'
    for name, content in metas.items():
        kind = "property" if name.startswith("og:") else "name"
        tags += f'<meta {kind}="{name}" content="{escape(content)}">'
    end = rest.find(b"<script")
    rest_of_head = _TITLE_TAG.sub(b"", _GRADIO_TAG.sub(b"", rest[:end]))
    return start + opening + tags.encode() + rest_of_head + rest[end:]
