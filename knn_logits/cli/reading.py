"""Reads a corpus, or texts to predict: its options, its progress bar, messages about its files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from knn_logits.cli.terminal import Bars, tell
from knn_logits.corpus.documents import Document
from knn_logits.errors import ConfigError

# If many files are skipped for one reason, only so many are named. All are counted.
_NAMED = 5


@dataclass(frozen=True)
class Fields:
    """What the options of the command line say about the files of a corpus.

    Attributes:
        text: The field of a row's text.
        id: The field of its id.
        title: The field of its title.
        source: The field of a pair's source.
        target: The field of its target.
        encoding: The encoding of text files, HTML and rows; None recognises it.
        strict: Whether to stop at a file that cannot be read.
    """

    text: str = "text"
    id: str = "id"
    title: str = "title"
    source: str = "source"
    target: str = "target"
    encoding: str | None = None
    strict: bool = False


@dataclass
class Told:
    """Prints messages about the files of a corpus, and keeps what was skipped.

    Attributes:
        skipped: Names and reasons of everything that was skipped.
    """

    skipped: list[tuple[str, str]] = field(default_factory=list)
    _kinds: Counter[str] = field(default_factory=Counter)
    _reasons: dict[str, str] = field(default_factory=dict)
    _notes: Counter[str] = field(default_factory=Counter)

    def skip(self, name: str, reason: str) -> None:
        """Tells that a file, or a part of one, is skipped."""
        self.skipped.append((name, reason))
        kind = _kind(reason)
        self._kinds[kind] += 1
        self._reasons.setdefault(kind, reason)
        if self._kinds[kind] <= _NAMED:
            tell(f"skipped {name}: {reason}")

    def note(self, name: str, note: str) -> None:
        """Tells something about a file that is read."""
        kind = _kind(note)
        self._notes[kind] += 1
        if self._notes[kind] <= _NAMED:
            tell(f"{name}: {note}", style=None)

    @property
    def summary(self) -> str | None:
        """Summarises by reason what was skipped, in one line; None if nothing was."""
        if not self.skipped:
            return None
        several = "; ".join(
            f"{count:,} × {self._reasons[kind]}" if count > 1 else self._reasons[kind]
            for kind, count in self._kinds.most_common()
        )
        return f"{len(self.skipped):,} skipped: {several}"


def _kind(reason: str) -> str:
    """Returns the part of a reason that does not differ from file to file."""
    return re.sub(r"[\d.,]+", "#", reason.partition(" (")[0].partition(":")[0])


def documents_of(
    corpus: Sequence[str], fields: Fields, told: Told, bars: Bars, *, pairs: bool
) -> Iterator[Document]:
    """Reads the documents of a corpus, with a progress bar over its bytes.

    Raises:
        ConfigError: when the encoding is unknown.
        CorpusError: when there is nothing to read; while reading, as `read_corpus` says.
    """
    from knn_logits.corpus.reading import corpus_bytes, read_corpus

    total = corpus_bytes(corpus)
    return read_corpus(
        corpus,
        strict=fields.strict,
        on_skip=told.skip,
        on_note=told.note,
        pairs=pairs,
        pair_fields=(fields.source, fields.target),
        text_field=fields.text,
        id_field=fields.id,
        title_field=fields.title,
        encoding=fields.encoding,
        on_bytes=lambda done: bars("bytes read", done, total),
    )


def read_texts(names: Sequence[str], fields: Fields, *, pairs: bool = False) -> dict[str, Any]:
    """Returns a lazy reader of each text's documents, which may be pairs."""
    from knn_logits.corpus.reading import read_corpus

    texts: dict[str, Any] = {}
    for name in names:
        if name in texts:
            raise ConfigError(f"the text {name!r} is given twice; leave one out")
        texts[name] = read_corpus(
            [name],
            strict=fields.strict,
            on_skip=lambda skipped, reason: tell(f"skipped {skipped}: {reason}"),
            pairs=pairs,
            pair_fields=(fields.source, fields.target),
            text_field=fields.text,
            encoding=fields.encoding,
        )
    return texts
