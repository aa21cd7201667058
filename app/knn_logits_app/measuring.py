"""Measures the perplexity of a text without and with kNN, and under many settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from knn_logits import CorpusError, Datastore, Deadline, Document, evaluate, tune
from knn_logits_app.library import Library
from knn_logits_app.lines import pairs_of
from knn_logits_app.requests import Lookup, text_of
from knn_logits_app.session import Session

# The most characters of a text, since a visitor waits while it is measured under many settings.
MOST_CHARACTERS = 40_000


@dataclass(frozen=True)
class Measured:
    """The measures of a text. A perplexity that is infinite is None.

    Attributes:
        tokens: Number of tokens that were scored.
        lm: Perplexity of the model alone.
        interpolated: Perplexity of the mixture.
        knn: Perplexity of the neighbors alone.
        oracle: Perplexity if each token used the better of the model and the neighbors.
        bits_per_byte: Bits per byte of the mixture, and of the model alone.
        heat: Perplexities by temperature and λ; None if the text is too short to be halved.
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
    """The perplexities of a text under each temperature and λ.

    Attributes:
        temperatures: The temperatures of the rows.
        lmbdas: The values of λ of the columns.
        perplexities: The perplexities by row and column; None if a perplexity is infinite.
        k: Neighbors of each query in all of them. This k was the best one.
        best: The row and the column of the lowest perplexity.
    """

    temperatures: list[float]
    lmbdas: list[float]
    perplexities: list[list[float | None]]
    k: int
    best: tuple[int, int]


def to_measure(
    session: Session, library: Library, text: Any, sources: Any = None
) -> list[Document | str]:
    """Checks a text against the limits, and returns the documents to measure.

    Args:
        session: The session, which has the limits.
        library: The model.
        text: The text; for an encoder-decoder model the targets, one on each line.
        sources: The sources of the targets, one on each line.

    Raises:
        LimitError: when the text is too long.
        RequestError: when the text is empty, or the lines do not pair up.
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
        text: The text of one document; for an encoder-decoder model the targets, one on each line.
        lookup: The datastores and settings. A gate is ignored here.
        deadline: Ends the work early.
        own: The visitor's datastores.
        sources: The sources of the targets, one on each line.
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
    except CorpusError:  # The text is too short to be halved.
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
