"""An answer as the browser gets it: JSON, from which `assets/` draws what a visitor sees.

Nothing is drawn here. What comes from a corpus, a model or a visitor is a string of this JSON, and
the browser makes text of it, never elements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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

# Documents of a token that are listed; the others are counted.
_LISTED = 64


def frame(
    answers: Mapping[str, Answer],
    asked: Mapping[str, Any],
    *,
    kind: str = "write",
    note: Sequence[str] = (),
) -> str:
    """Answers as far as they are written.

    Args:
        answers: Under "lm" the model's own, under "knn" the one with the neighbors' votes,
            or under "text" one that was explained.
        asked: What was asked for, as the browser needs it to ask for more.
        kind: "write", "explain", or why an answer was written anew: "branch" or "without".
        note: What the browser says of it: the token chosen, or the document left out.
    """
    sides = {side: _side(answer) for side, answer in answers.items()}
    return _json({"kind": kind, "asked": asked, "note": list(note), "sides": sides})


def chat_frame(sequence: SequenceTrace, metric: str, most: int) -> str:
    """An answer in a chat: no more than so many tokens, and nothing that a visitor could ask for.

    Args:
        sequence: The answer.
        metric: How the datastores compare keys.
        most: Tokens with what is behind them; of the others there is the text.
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
    """One line in an answer's place."""
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
    """Documents by number: each is written once, however many words it is behind."""

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
    """A trace with each document written once; `assets/trace.js` makes the whole trace of it.

    Args:
        sequence: The trace.
        documents: Those that are numbered already.
    """
    table = _Table(documents)
    tokens = [_token(one, table) for one in sequence.tokens]
    known = sequence.familiarity
    return {
        "prompt": sequence.prompt,
        "familiarity": asdict(known) if known else None,
        "near": sequence.near,
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
    ]


def _neighbor(one: NeighborTrace, table: _Table) -> list[Any]:
    number = table.number(one)
    row = table.rows[number]
    # A place within a document has a title and an address of its own.
    title = None if one.title == row.title else one.title
    uri = None if one.uri == row.uri else one.uri
    numbers = [_short(one.weight), _short(one.distance), _short(one.influence)]
    text = [one.entry, one.before, one.word, one.after]
    return [number, *text, *numbers, title, uri, one.source, one.matched]


def _short(value: float | None) -> float | None:
    """A number with the digits that a float32 has."""
    return None if value is None else float(f"{value:.7g}")


def _json(content: Any) -> str:
    """JSON that opens no element wherever it is put."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def notice(line: str, *, kind: str = "note") -> str:
    """One line for a visitor, as HTML."""
    return f'<p class="kl-notice kl-{kind}" role="status">{text(line)}</p>'


def progress_html(phase: str, done: int, total: int | None) -> str:
    """How far a build is."""
    share = f' value="{min(done, total)}" max="{total}"' if total else ""
    count = f"{done:,} of {total:,}" if total else f"{done:,}"
    return (
        f'<div class="kl-progress"><span>{text(phase)}: {count}</span>'
        f'<progress aria-label="{text(phase)}"{share}></progress></div>'
    )
