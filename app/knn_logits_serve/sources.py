"""Returns the sources of an answer as plain values: spans, documents, shares and passages."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from knn_logits import DocumentShare, SequenceTrace, Source, main_sources
from knn_logits_serve.parts import End

# The most spans and the most documents of an answer, and the least share of a document.
_SPANS, _DOCUMENTS, _LEAST = 32, 16, 0.01


@dataclass(frozen=True)
class Span:
    """Consecutive words of an answer that come from one document.

    Attributes:
        start: The character of the answer at which the words begin.
        end: The character at which they end, exclusive.
        source: The document and its passage.
    """

    start: int
    end: int
    source: Source


def spans_of(end: End, number: int = _SPANS) -> list[Span]:
    """Returns the spans in which documents have the largest shares, in the order of the text."""
    sequence = within(end)
    if sequence is None:
        return []
    places, at = {}, 0
    for token in sequence.tokens:
        places[id(token)] = at
        at += len(token.token)
    # The target of a source begins without the space that its first token may have.
    first = sequence.text
    shift = 0 if first[:1] == end.text[:1] else len(first) - len(first.lstrip())
    spans = []
    for source in main_sources(sequence, number):
        start = places[id(source.tokens[0])] - shift
        stop = min(len(end.text), start + len(source.words))
        words = end.text[max(0, start) : stop]
        start = max(0, start) + len(words) - len(words.lstrip())
        stop -= len(words) - len(words.rstrip())
        if start < stop:
            spans.append(Span(start, stop, source))
    return spans


def within(end: End) -> SequenceTrace | None:
    """Returns the trace of the tokens that begin within the answer. A stop text may cut it."""
    if end.trace is None:
        return None
    inside, at = [], 0
    for token in end.trace.tokens:
        if at >= len(end.text) and token.token:
            break
        inside.append(token)
        at += len(token.token)
    return replace(end.trace, tokens=inside)


def documents_of(end: End) -> list[DocumentShare]:
    """Returns the documents of the whole answer with their mean shares, the largest first."""
    sequence = within(end)
    if sequence is None or not sequence.tokens:
        return []
    return [document for document in sequence.documents[:_DOCUMENTS] if document.share >= _LEAST]


def sources_json(end: End) -> dict[str, Any] | None:
    """Returns the sources of an answer for a client."""
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
    return {"spans": spans, "documents": [_document(document) for document in documents_of(end)]}


def _document(document: DocumentShare) -> dict[str, Any]:
    return {**asdict(document), "share": _rounded(document.share)}


def _rounded(share: float) -> float:
    return round(share, 4)
