"""Writes the page's title, description and icon into its HTML, where other sites read them.

Sites and chats that preview a link do not run scripts. gradio writes its own tags for them, which
call the page "Gradio" and lead to gradio's site, and it sets the real title with a script.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

TITLE = "knn-logits: a language model with a memory you can read"
DESCRIPTION = (
    "Write with a language model that looks every word up in a memory of documents, and see which "
    "passage each word came from."
)
_FOREIGN = re.compile(
    rb"""\s*<meta\s+(?:property|name)="(?:og|twitter):[a-z:]+"\s+content="[^"]*"\s*/?>"""
)
ICON = Path(__file__).parent / "assets" / "icon.svg"
_TITLE = re.compile(rb"<title>.*?</title>", re.DOTALL)


def page_address(scope: MutableMapping[str, Any]) -> str:
    """Returns the address of the page that a request of ASGI asks for, without its query."""
    hosts = dict(scope["headers"])
    host = hosts.get(b"x-forwarded-host") or hosts.get(b"host") or b""
    return f"{scope['scheme']}://{host.decode('latin-1')}{scope.get('root_path', '')}/"


def tags(address: str) -> str:
    """Returns the tags of a preview.

    Args:
        address: The address of the page, without a query.
    """
    content = {
        "og:type": "website",
        "og:site_name": "knn-logits",
        "og:title": TITLE,
        "og:description": DESCRIPTION,
        "og:url": address,
        "twitter:card": "summary",
        "twitter:title": TITLE,
        "twitter:description": DESCRIPTION,
    }
    return "".join(
        f'<meta {"property" if name.startswith("og:") else "name"}="{name}" '
        f'content="{escape(value)}">'
        for name, value in content.items()
    )


def with_preview(page: bytes, address: str) -> bytes:
    """Puts the tags into the HTML of a page, in place of gradio's.

    Args:
        page: The HTML of the page.
        address: The address of the page, without a query.
    """
    start, head, rest = page.partition(b"<head>")
    if not head:
        return page
    end = rest.find(b"<script")
    mine = (
        f"<title>{escape(TITLE)}</title>"
        f'<meta name="description" content="{escape(DESCRIPTION)}">'
        f'<link rel="icon" href="data:image/svg+xml,{quote(ICON.read_text(encoding="utf-8"))}">'
        + tags(address)
    )
    kept = _TITLE.sub(b"", _FOREIGN.sub(b"", rest[:end]))
    return start + head + mine.encode() + kept + rest[end:]
