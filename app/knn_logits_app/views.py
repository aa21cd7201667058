"""Packs answers as JSON for the browser, with the scripts of `assets/` that draw them; makes HTML.

Text of a corpus, a model or a visitor is always a string in this JSON. The browser turns it into
text nodes, and never into elements.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from knn_logits.hosting import DocumentShare, NeighborTrace, SequenceTrace
from knn_logits_app.session import Answer

TITLE = "knn-logits: a language model with a memory you can read"
ASSETS = Path(__file__).parent / "assets"
ICON = ASSETS / "icon.svg"
# The scripts, each after those that it needs.
_SCRIPTS = (
    "dom", "words", "answer", "panel", "documents", "take", "page",
    "mount", "chat", "alone",
)  # fmt: skip
_NAMES = (
    "mount, drawer, controls, know, alone, fromLink, runLink, chat, reading, "
    "theChat, addressOf, rendered, read, look, hint, headline"
)
_MAX_DOCUMENTS = 64  # of a token
# These characters stay in a text: white space, and the joiners that many scripts need.
_INVISIBLE = "\n\t \u200c\u200d"


def frame(
    answers: Mapping[str, Answer],
    request: Mapping[str, Any],
    *,
    kind: str = "write",
    named: str = "",
) -> str:
    """Packs answers, as far as they are written, with their traces once all are."""
    whole = all(answer.done for answer in answers.values())
    sides = {side: _side(answer, whole) for side, answer in answers.items()}
    return json_text({"kind": kind, "asked": request, "named": named, "sides": sides})


def chat_page(sequence: SequenceTrace, folded: str | None = None) -> str:
    """Returns the HTML document of an answer in a chat, where no further requests can be made.

    It loads nothing from elsewhere. So it works in any program that shows a page in a frame. Where
    the program shows the answer as well, only the line in `folded` is seen until it is opened.
    """
    side = {
        "prompt": "", "knn": True, "done": True, "stopped": None,
        "tokens": len(sequence.tokens), "seconds": 0,
        "trace": packed(replace(sequence, prompt="")),
    }  # fmt: skip
    content = {"kind": "chat", "asked": {}, "sides": {"knn": side}}
    return alone(json_text(content), folded)


def message(line: str) -> str:
    """Packs one line that is shown in place of an answer, also where the same one stood before."""
    return json_text({"message": line, "now": time.monotonic_ns()})


def _side(answer: Answer, traced: bool) -> dict[str, Any]:
    names = ("prompt", "knn", "done", "stopped", "tokens", "gated")
    content = {name: getattr(answer, name) for name in names}
    content["seconds"] = round(answer.seconds, 3)
    if answer.trace is None or not traced:
        pieces = [[piece.text, round(piece.share, 3), piece.changed] for piece in answer.words]
        return {**content, "words": pieces}
    trace = packed(answer.trace[0])
    for token, turns in zip(trace["tokens"], answer.turns, strict=False):
        token["turns"] = turns
    return {**content, "trace": trace}


def packed(sequence: SequenceTrace) -> dict[str, Any]:
    """Packs a trace for `assets/words.js`; each document is written once.

    Elsewhere its number stands for it, and what a passage has of its own, such as a page.
    """
    rows: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.7g}")  # as a float32
        if value is None or isinstance(value, (str, int)):
            return value
        if isinstance(value, (list, tuple)):
            return [plain(part) for part in value]
        fields = vars(value)
        if isinstance(value, (DocumentShare, NeighborTrace)):
            about = {name: fields[name] for name in ("store", "document", "title", "uri")}
            number, shown = rows.setdefault((value.store, value.document), (len(rows), about))
            new = {name: part for name, part in fields.items() if (name, part) not in shown.items()}
            fields = {**new, "document": number}
        return {name: plain(part) for name, part in fields.items()}

    tokens = []
    for token in sequence.tokens:
        token = replace(token, documents=token.documents[:_MAX_DOCUMENTS])
        plain(token.documents)  # before the passages, whose titles may name a section
        tokens.append({**plain(token), "meaning": token.meaning})
    shares = {(one.store, one.document): plain(one.share) for one in sequence.documents}
    return {
        **asdict(replace(sequence, tokens=[], contradictions=[])),
        "alone": sequence.alone,
        "share": sum(shares.values()),
        "tokens": tokens,
        "contradictions": plain(sequence.contradictions),
        "documents": [[*shown.values(), shares.get(key, 0)] for key, (_, shown) in rows.items()],
    }


def json_text(content: Any) -> str:
    """Writes JSON that cannot open an element when it is put into HTML."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def text(value: object) -> str:
    """Escapes a value for HTML text or an attribute, and removes control characters."""
    shown = "".join(char for char in str(value) if char.isprintable() or char in _INVISIBLE)
    return escape(shown, quote=True)


def notice(line: str, *, kind: str = "note") -> str:
    """Returns one line for a visitor, as HTML."""
    return f'<p class="kl-notice kl-{kind}" role="status">{text(line)}</p>'


@cache
def script() -> str:
    """Returns the JavaScript that draws answers. It defines the object `knnLogits`."""
    parts = "\n".join(asset(f"{name}.js") for name in _SCRIPTS)
    return f"window.knnLogits = (() => {{\n{parts}\nreturn {{ {_NAMES} }};\n}})();"


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
