"""Measures the perplexity of a text without and with kNN, and under many settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from knn_logits import CorpusError, Datastore, Deadline, Document, evaluate, tune
from knn_logits_app.library import Library
from knn_logits_app.requests import Lookup, pairs_of, text_of
from knn_logits_app.session import Session

# The most characters of a text, since a visitor waits while it is measured many times.
MOST_MEASURED = 40_000


@dataclass(frozen=True)
class Heat:
    """The perplexities of a text by temperature (rows) and λ (columns); None is infinite."""

    temperatures: list[float]
    lmbdas: list[float]
    perplexities: list[list[float | None]]
    k: int
    best: tuple[int, int]


@dataclass(frozen=True)
class Measured:
    """The perplexities of a text. One that is infinite is None."""

    tokens: int
    lm: float | None
    interpolated: float | None
    knn: float | None
    oracle: float | None
    bits_per_byte: tuple[float | None, float | None]
    heat: Heat | None


def to_measure(
    session: Session, library: Library, text: Any, sources: Any = None
) -> list[Document | str]:
    """Checks a text against the limits, and returns the documents to measure.

    For an encoder-decoder model the text has the targets and `sources` their sources, one on
    each line.
    """
    if not library.reader.sources:
        text = text_of(text, most=MOST_MEASURED)
        session.limits.check(text_bytes=len(text.encode("utf-8")))
        return [text]
    pairs = pairs_of(sources, text, most=MOST_MEASURED)
    session.limits.check(text_bytes=len(f"{sources}{text}".encode()))
    return list(pairs)


def measure(
    session: Session,
    library: Library,
    text: str,
    lookup: Lookup,
    sources: str | None,
    deadline: Deadline,
    private: Mapping[str, Datastore] | None = None,
) -> Measured:
    """Measures a text that `to_measure` allows. A gate is ignored here."""
    documents = to_measure(session, library, text, sources)
    memory = library.memory.over(session.stores(library, lookup, private))
    model, tokenizer, watch = library.model, library.tokenizer, deadline.watch()
    total = evaluate(
        model, tokenizer, memory, documents, samples=0, progress=watch, **lookup.settings
    ).total
    heat = None
    try:
        tuned = tune(model, tokenizer, memory, documents, progress=watch)
        numbers = tuned.numbers()
        heat = Heat(
            numbers["temperatures"],
            numbers["lmbdas"],
            numbers["perplexity_by_temperature_and_lmbda"],
            tuned.k,
            (tuned.place[1], tuned.place[2]),
        )
    except CorpusError:  # The text is too short to be halved.
        pass
    perplexity, bits = total.perplexity, total.bits_per_byte
    return Measured(
        total.tokens,
        perplexity.lm,
        perplexity.interpolated,
        perplexity.knn,
        perplexity.oracle,
        (bits.interpolated, bits.lm),
        heat,
    )
