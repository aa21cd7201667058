"""A text measured: its perplexity without and with kNN, and under many settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from knn_logits import CorpusError, Datastore, Deadline, Document, evaluate, tune
from knn_logits_app.library import Library
from knn_logits_app.lines import pairs_of
from knn_logits_app.requests import Lookup, text_of
from knn_logits_app.session import Session

# Characters of a text that is measured in this many settings while somebody waits.
MOST_CHARACTERS = 40_000


@dataclass(frozen=True)
class Measured:
    """What came out.

    Attributes:
        tokens: Tokens scored.
        lm: Perplexity of the model alone.
        interpolated: Of the mixture.
        knn: Of the neighbors alone; None where it is infinite.
        oracle: Of the better of both, token by token.
        bits_per_byte: The mixture's and the model's.
        heat: Perplexities by temperature and λ; None for a text too short to be divided.
    """

    tokens: int
    lm: float | None
    interpolated: float | None
    knn: float | None
    oracle: float | None
    bits_per_byte: tuple[float | None, float | None]
    heat: Heat | None


@dataclass(frozen=True)
class Heat:
    """Perplexities of a text under each temperature and λ.

    Attributes:
        temperatures: Rows.
        lmbdas: Columns.
        perplexities: One list a row; None where it is infinite.
        k: Neighbors that all of them use, the best number found.
        best: The chosen row and column.
    """

    temperatures: list[float]
    lmbdas: list[float]
    perplexities: list[list[float | None]]
    k: int
    best: tuple[int, int]


def to_measure(
    session: Session, library: Library, text: Any, sources: Any = None
) -> list[Document | str]:
    """What is measured, when it is within the limits.

    Args:
        session: Whose limits hold.
        library: The model.
        text: The text; of an encoder-decoder model targets, one a line.
        sources: What the targets were written to, one a line.
    """
    if not library.reading.sources:
        text = text_of(text, most=MOST_CHARACTERS)
        session.limits.check(text_bytes=len(text.encode("utf-8")))
        return [text]
    pairs = pairs_of(sources, text, most=MOST_CHARACTERS)
    session.limits.check(text_bytes=len(f"{sources}{text}".encode()))
    return list(pairs)


def measure(
    session: Session,
    library: Library,
    text: str,
    lookup: Lookup,
    deadline: Deadline,
    own: Mapping[str, Datastore] | None = None,
    sources: str | None = None,
) -> Measured:
    """Measures a text.

    Args:
        session: The models.
        library: The model.
        text: The text, one document; of an encoder-decoder model targets, one a line.
        lookup: The datastores and settings. A gate has no say here.
        deadline: Ends the work early.
        own: The visitor's datastores.
        sources: What the targets were written to, one a line.
    """
    documents = to_measure(session, library, text, sources)
    stores = session.stores(library, lookup, own)
    memory, watch = library.memory.over(stores), deadline.watch()
    settings: dict[str, Any] = {
        "k": lookup.k,
        "lmbda": lookup.lmbda,
        "temperature": lookup.temperature,
    }
    found = evaluate(
        library.model,
        library.tokenizer,
        memory,
        documents,
        samples=0,
        progress=watch,
        **settings,
    ).total
    heat = None
    try:
        tuned = tune(library.model, library.tokenizer, memory, documents, progress=watch)
        numbers = tuned.numbers()
        heat = Heat(
            numbers["temperatures"],
            numbers["lmbdas"],
            numbers["perplexity_by_temperature_and_lmbda"],
            tuned.k,
            (tuned.place[1], tuned.place[2]),
        )
    except CorpusError:  # too short to be divided into two halves
        pass
    return Measured(
        found.tokens,
        found.perplexity.lm,
        found.perplexity.interpolated,
        found.perplexity.knn,
        found.perplexity.oracle,
        (found.bits_per_byte.interpolated, found.bits_per_byte.lm),
        heat,
    )
