"""A corpus as `build` and `add` read it: its options, its bar, and what is said of its files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from knn_logits.cli.common import Bars, tell
from knn_logits.corpus.documents import Document

# Of files that are passed over for one reason, so many are named; all are counted.
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
        encoding: Of text files, HTML and rows; None recognises it.
        strict: Stop at what cannot be read.
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
    """What was said of the files of a corpus.

    Attributes:
        skipped: Names and reasons of all that was passed over.
    """

    skipped: list[tuple[str, str]] = field(default_factory=list)
    _kinds: Counter[str] = field(default_factory=Counter)
    _reasons: dict[str, str] = field(default_factory=dict)
    _notes: Counter[str] = field(default_factory=Counter)

    def skip(self, name: str, reason: str) -> None:
        """A file, or a part of one, is passed over."""
        self.skipped.append((name, reason))
        kind = _kind(reason)
        self._kinds[kind] += 1
        self._reasons.setdefault(kind, reason)
        if self._kinds[kind] <= _NAMED:
            tell(f"skipped {name}: {reason}")

    def note(self, name: str, note: str) -> None:
        """Something should be known of a file that is read."""
        kind = _kind(note)
        self._notes[kind] += 1
        if self._notes[kind] <= _NAMED:
            tell(f"{name}: {note}", style=None)

    @property
    def summary(self) -> str | None:
        """All that was passed over, by reason, in one line; None where nothing was."""
        if not self.skipped:
            return None
        several = "; ".join(
            f"{count:,} × {self._reasons[kind]}" if count > 1 else self._reasons[kind]
            for kind, count in self._kinds.most_common()
        )
        return f"{len(self.skipped):,} skipped: {several}"


def _kind(reason: str) -> str:
    """What like reasons share: the words before what differs from file to file."""
    return re.sub(r"[\d.,]+", "#", reason.partition(" (")[0].partition(":")[0])


def documents_of(
    corpus: Sequence[str], fields: Fields, told: Told, bars: Bars, *, pairs: bool
) -> Iterator[Document]:
    """The documents of a corpus, with a bar over its bytes.

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
