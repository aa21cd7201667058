"""Reads a corpus, or texts to predict, and says which of their files are skipped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from knn_logits.cli.bars import Bars
from knn_logits.cli.terminal import say, tell
from knn_logits.corpus.parsers import DOCUMENTS
from knn_logits.settings.declaration import setting

if TYPE_CHECKING:
    from knn_logits.corpus.documents import Document

# The maximum number of files that are named for one reason. All are counted.
_MAX_SHOWN = 5

Corpus = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS...",
        help=f"Plain text, source code, {DOCUMENTS}; JSON lines and parquet (fields text, id, "
        "title, uri); gzip of these, folders of these, or hf:DATASET[:CONFIG[:SPLIT]]. An "
        "encoder-decoder model takes rows with source and target.",
    ),
]


@dataclass
class Report:
    """Prints messages about the files of a corpus, and counts what was skipped."""

    skipped: list[tuple[str, str]] = field(default_factory=list)
    _kinds: Counter[str] = field(default_factory=Counter)

    def skip(self, name: str, reason: str) -> None:
        self.skipped.append((name, reason))
        self._tell(f"skipped {name}: {reason}", reason, "yellow")

    def note(self, name: str, note: str) -> None:
        self._tell(f"{name}: {note}", note, None)

    def _tell(self, line: str, reason: str, style: str | None) -> None:
        self._kinds[_kind(reason)] += 1
        if self._kinds[_kind(reason)] <= _MAX_SHOWN:
            tell(line, style)

    def sum_up(self) -> None:
        """Prints by reason what was skipped, in one line, if anything was."""
        if self.skipped:
            kinds = Counter(_kind(reason) for _, reason in self.skipped).most_common()
            several = "; ".join(f"{count:,} × {kind}" for kind, count in kinds)
            say(f"{len(self.skipped):,} skipped: {several}")


def _kind(reason: str) -> str:
    """The part of a reason that does not differ from file to file."""
    return re.split(r"[:(\d]", reason)[0].strip()


@dataclass(frozen=True)
class CorpusOptions:
    """How the files of a corpus are read."""

    source_field: str = setting("source", "Field of a row's source, such as translation.en.")
    target_field: str = setting("target", "Field of a row's target.")
    text_field: str = setting("text", "Field of a row's text, such as body or article.text.")

    def _read(self, corpus: Sequence[str], **options: Any) -> Iterator[Document]:
        from knn_logits.corpus.reading import read_corpus

        how = dict(vars(self))
        how["pair_fields"] = (how.pop("source_field"), how.pop("target_field"))
        return read_corpus(corpus, **how, **options)

    def documents(
        self, corpus: Sequence[str], report: Report, bars: Bars, *, pairs: bool
    ) -> Iterator[Document]:
        """Reads the documents of a corpus, with a progress bar over its bytes."""
        from knn_logits.corpus.reading import corpus_bytes

        total = corpus_bytes(corpus)
        how = {"on_skip": report.skip, "on_note": report.note, "pairs": pairs}
        rows = self._read(corpus, **how, on_bytes=lambda done: bars("bytes read", done, total))
        # A corpus without a document is refused here, before the model is loaded. That texts are no
        # pairs is said once it is known that the model fits.
        return rows if pairs else chain([next(rows)], rows)

    def texts(self, names: Sequence[str], *, pairs: bool) -> Iterator[Document]:
        """Reads the documents of a text to predict, which may be pairs."""
        return self._read(
            names, on_skip=lambda part, why: tell(f"skipped {part}: {why}"), pairs=pairs
        )
