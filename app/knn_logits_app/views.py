"""Packs answers as JSON for the browser, where the scripts of `assets/` draw them.

Text of a corpus, a model or a visitor is always a string in this JSON. The browser turns it into
text nodes, and never into elements.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from knn_logits import (
    DocumentShare,
    NeighborTrace,
    Rival,
    SequenceTrace,
    TokenTrace,
)
from knn_logits_app.live import Shown
from knn_logits_app.markup import text
from knn_logits_app.session import Answer

# The most documents of a token that are listed. The others are only counted.
_LISTED = 64


def frame(
    answers: Mapping[str, Answer],
    asked: Mapping[str, Any],
    *,
    kind: str = "write",
    note: Sequence[str] = (),
    known: Collection[str] = (),
) -> str:
    """Packs answers, as far as they are written.

    Args:
        answers: The answers by side. "lm" is the model's own, "knn" the one with neighbors, and
            "text" a text that was explained.
        asked: The request. The browser needs it to make further requests about the answer.
        kind: "write", "explain", or the reason why an answer was written again ("branch" or
            "without").
        note: The words that the page shows about such a reason: the token that was chosen, or the
            document that is ignored.
        known: Sides that the browser has as they are, from an earlier frame of the same request.
    """
    sides: dict[str, Any] = {
        side: {"known": True} if side in known else _side(answer)
        for side, answer in answers.items()
    }
    return _json({"kind": kind, "asked": asked, "note": list(note), "sides": sides})


def chat_frame(sequence: SequenceTrace, metric: str, most: int) -> str:
    """Packs an answer for a chat, where a visitor cannot make further requests about it.

    Args:
        sequence: The trace of the answer.
        metric: The metric of the datastores.
        most: The most tokens that are packed with their sources. Of further tokens only the text
            is packed.
    """
    traced, rest = sequence.tokens[:most], sequence.tokens[most:]
    plain = [
        replace(one, neighbors=[], documents=[], candidates=[], by_memory=None) for one in rest
    ]
    shown = replace(sequence, prompt="", tokens=[*traced, *plain])
    side = {
        "prompt": "", "begun": "", "knn": True, "done": True, "stopped": None, "passes": None,
        "tokens": len(shown.tokens), "seconds": 0, "trace": packed(shown), "live": None,
        "metric": metric,
    }  # fmt: skip
    return _json({"kind": "chat", "asked": {}, "note": [], "sides": {"knn": side}})


def message(line: str, *, kind: str = "error") -> str:
    """Packs one line that is shown in place of an answer."""
    return _json({"message": line, "kind": kind})


def _side(answer: Answer) -> dict[str, Any]:
    content: dict[str, Any] = {
        "prompt": answer.prompt,
        "begun": answer.begun,
        "knn": answer.knn,
        "done": answer.done,
        "stopped": answer.stopped,
        "tokens": answer.tokens,
        "seconds": round(answer.seconds, 3),
        "passes": answer.passes,
        "metric": answer.metric,
    }
    if answer.trace is None:
        content["words"] = [[one.text, round(one.share, 3), one.changed] for one in answer.words]
    else:
        live, documents = answer.live or (None, [])
        content["trace"] = packed(answer.trace[0], documents)
        content["live"] = live
    return content


class _Table:
    """Numbers the documents, so that each is written only once."""

    def __init__(self, known: Sequence[Shown]) -> None:
        self.rows = list(known)
        self._numbers = {(one.store, one.document): place for place, one in enumerate(known)}

    def number(self, one: DocumentShare | NeighborTrace) -> int:
        key = (one.store, one.document)
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append(Shown(one.store, one.document, one.title, one.uri))
        return self._numbers[key]


def packed(sequence: SequenceTrace, documents: Sequence[Shown] = ()) -> dict[str, Any]:
    """Packs a trace so that each document is written once. `assets/trace.js` unpacks it.

    Args:
        sequence: The trace.
        documents: The documents that have numbers already.
    """
    table = _Table(documents)
    tokens = [_token(one, table) for one in sequence.tokens]
    known = sequence.familiarity
    return {
        "prompt": sequence.prompt,
        "familiarity": asdict(known) if known else None,
        "near": sequence.near,
        "unknown": list(sequence.unknown),
        "tokens": tokens,
        "documents": [[one.store, one.document, one.title, one.uri] for one in table.rows],
    }


def _token(token: TokenTrace, table: _Table) -> dict[str, Any]:
    listed, rest = token.documents[:_LISTED], token.documents[_LISTED:]
    return {
        "token": token.token,
        "token_id": token.token_id,
        "p": _short(token.p),
        "p_lm": _short(token.p_lm),
        "p_knn": _short(token.p_knn),
        "lmbda": _short(token.lmbda),
        "influence": _short(token.influence),
        "retrieval": token.retrieval,
        "near": token.near,
        "meaning": token.meaning,
        "verbatim": token.verbatim,
        "by_model": _rival(token.by_model, table),
        "by_memory": _rival(token.by_memory, table),
        "documents": [[table.number(one), _short(one.share)] for one in listed],
        "rest": [len(rest), _short(sum(one.share for one in rest))],
        "candidates": [
            [one.token, one.token_id, _short(one.p), _short(one.p_lm), _short(one.p_knn)]
            for one in token.candidates
        ],
        "neighbors": [_neighbor(one, table) for one in token.neighbors],
    }


def _rival(rival: Rival | None, table: _Table) -> list[Any] | None:
    if rival is None:
        return None
    behind = rival.document
    return [
        rival.token,
        _short(rival.p),
        None if behind is None else table.number(behind),
        None if behind is None else _short(behind.share),
        rival.entry,
    ]


def _neighbor(one: NeighborTrace, table: _Table) -> list[Any]:
    number = table.number(one)
    row = table.rows[number]
    # The title and URI are written only if the passage's differ from the document's.
    title = None if one.title == row.title else one.title
    uri = None if one.uri == row.uri else one.uri
    numbers = [_short(one.weight), _short(one.distance), _short(one.influence)]
    text = [one.entry, one.before, one.word, one.after]
    return [number, *text, *numbers, title, uri, one.source, one.matched]


def _short(value: float | None) -> float | None:
    """Rounds a number to the seven digits of a float32."""
    return None if value is None else float(f"{value:.7g}")


def _json(content: Any) -> str:
    """Writes JSON that cannot open an element when it is put into HTML."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def notice(line: str, *, kind: str = "note") -> str:
    """Returns one line for a visitor, as HTML."""
    return f'<p class="kl-notice kl-{kind}" role="status">{text(line)}</p>'


def progress_html(phase: str, done: int, total: int | None) -> str:
    """Returns the progress of a build, as HTML."""
    share = f' value="{min(done, total)}" max="{total}"' if total else ""
    count = f"{done:,} of {total:,}" if total else f"{done:,}"
    return (
        f'<div class="kl-progress"><span>{text(phase)}: {count}</span>'
        f'<progress aria-label="{text(phase)}"{share}></progress></div>'
    )
