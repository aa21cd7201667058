"""Where an answer's words come from, as plain values: spans, documents, shares, passages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from knn_logits import DocumentShare, SequenceTrace, Source, main_sources
from knn_logits_serve.told import End

# Spans that an answer names, and documents; what did less than this share is left out.
_SPANS, _DOCUMENTS, _LEAST = 32, 16, 0.01


@dataclass(frozen=True)
class Span:
    """Words of an answer that one document gave.

    Attributes:
        start: Where they begin in the answer, in characters.
        end: Where they end.
        source: The document and its passage.
    """

    start: int
    end: int
    source: Source


def spans_of(end: End, number: int = _SPANS) -> list[Span]:
    """The spans of an answer that owe most to a document, in the order of the text."""
    sequence = within(end)
    if sequence is None:
        return []
    places, at = {}, 0
    for token in sequence.tokens:
        places[id(token)] = at
        at += len(token.token)
    # A text of its own begins with no space, whatever its first token does.
    first = sequence.text
    shift = 0 if first[:1] == end.text[:1] else len(first) - len(first.lstrip())
    found = []
    for source in main_sources(sequence, number):
        start = places[id(source.tokens[0])] - shift
        stop = min(len(end.text), start + len(source.words))
        words = end.text[max(0, start) : stop]
        start = max(0, start) + len(words) - len(words.lstrip())
        stop -= len(words) - len(words.rstrip())
        if start < stop:
            found.append(Span(start, stop, source))
    return found


def within(end: End) -> SequenceTrace | None:
    """The trace of those tokens that begin within the answer: it may end before a stop text."""
    if end.trace is None:
        return None
    kept, at = [], 0
    for token in end.trace.tokens:
        if at >= len(end.text) and token.token:
            break
        kept.append(token)
        at += len(token.token)
    return SequenceTrace(end.trace.prompt, kept)


def documents_of(end: End) -> list[DocumentShare]:
    """The documents of the whole answer with their mean shares, the largest first."""
    sequence = within(end)
    if sequence is None or not sequence.tokens:
        return []
    return [one for one in sequence.documents[:_DOCUMENTS] if one.share >= _LEAST]


def sources_json(end: End) -> dict[str, Any] | None:
    """The sources of an answer for a client; None without kNN.

    Returns:
        `spans`: `start`, `end`, `text`, `share` of all neighbors, the `document` with its own
        share, and the `passage` (`before`, `words`, `after`) where one is known. `documents`:
        those of the whole answer with their shares.
    """
    if end.trace is None:
        return None
    spans = []
    for span in spans_of(end):
        source = span.source
        passage = None
        if source.neighbor is not None:
            passage = {
                "before": source.neighbor.before,
                "words": source.words,
                "after": source.after,
            }
            if source.neighbor.source is not None:
                passage["source"] = source.neighbor.source
        spans.append(
            {
                "start": end.offset + span.start,
                "end": end.offset + span.end,
                "text": end.text[span.start : span.end],
                "share": _rounded(source.total),
                "document": _document(source.document),
                "passage": passage,
            }
        )
    return {"spans": spans, "documents": [_document(one) for one in documents_of(end)]}


def _document(one: DocumentShare) -> dict[str, Any]:
    return {**asdict(one), "share": _rounded(one.share)}


def _rounded(share: float) -> float:
    return round(share, 4)
