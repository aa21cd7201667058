"""`Document`, and what users give where documents are expected.

Knows what makes a text one that can be cut and written down. It reads no file: that is `reading`.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from knn_logits.corpus.rows import Place, type_name
from knn_logits.errors import CorpusError

Given = TypeVar("Given")


@dataclass(frozen=True)
class Document:
    """One text of a corpus.

    Attributes:
        text: the text, encodable as UTF-8; of a pair, the target. `read_corpus` gives no blank one.
        id: unique within one call of `read_corpus`, but for the parts of one very large file,
            which share it. Where the source gives none: the file's path relative to the folder
            given, with `:` and the number of the line or row (from 1) where the file holds several.
        title: its title, where the source gives one.
        uri: where it can be found, where the source says so; the relative path of a text file.
        metadata: the remaining fields of its row, all of them values that JSON has. From parquet
            and `hf:`, dates and decimals are written as text; nulls and bytes are left out.
        source: of a pair, the sentence that an encoder reads.
        places: pages, headings or lines of the text, in its order; a source names the one in which
            it stands. They are kept with the tokens that a fast tokenizer cuts.

    Raises:
        CorpusError: when one of them is of another type, or holds half a character.
    """

    text: str
    id: str
    title: str | None = None
    uri: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    source: str | None = None
    places: Sequence[Place] = ()

    def __post_init__(self) -> None:
        checked_text(self.id, "a document's id")
        for name in ("text", "title", "uri", "source"):
            value = getattr(self, name)
            if value is not None or name == "text":
                checked_text(value, f"the {name} of the document {self.id[:80]!r}")
        if not isinstance(self.metadata, Mapping):
            raise CorpusError(
                f"the metadata of the document {self.id[:80]!r} is {type_name(self.metadata)}, not "
                "an object; give names with their values"
            )


def checked_text(value: object, what: str) -> str:
    """A text that can be cut into tokens and written down.

    Args:
        value: What is given.
        what: What a message calls it.

    Raises:
        CorpusError: when it is no string, or holds half a character.
    """
    if not isinstance(value, str):
        raise CorpusError(f"{what} is {type_name(value)}, not a string; give a string")
    try:
        if not value.isascii():
            value.encode("utf-8")
    except UnicodeEncodeError:
        raise CorpusError(
            f"{what} holds a lone surrogate, which is no character; replace or remove it"
        ) from None
    return value


def several(given: Iterable[Given], what: str) -> Iterable[Given]:
    """What is given, which has to be several: a string would be taken apart into characters.

    Raises:
        CorpusError: when it is a single one, or cannot be read one by one.
    """
    if isinstance(given, (str, bytes, os.PathLike, Document, Mapping)):
        raise CorpusError(
            f"{what} must be several, and one of type {type(given).__name__} is given; write it "
            "in a list, [...], or read files with read_corpus"
        )
    if not isinstance(given, Iterable):
        raise CorpusError(f"{what} must be several, in a list, not {type_name(given)}")
    return given


def as_documents(
    documents: Iterable[Document | str], before: Collection[str] = ()
) -> Iterator[Document]:
    """Texts as documents, whose ids are their numbers.

    Args:
        documents: Texts or documents.
        before: Ids of the documents that come first; the numbers go on behind them.

    Raises:
        CorpusError: when a single text is given in place of several; while they are read, when one
            is neither a text nor a document.
    """
    return _numbered(several(documents, "documents"), before)


def _numbered(documents: Iterable[Document | str], before: Collection[str]) -> Iterator[Document]:
    ids = dict.fromkeys(before, 1)
    for number, document in enumerate(documents, start=len(before)):
        if isinstance(document, Document):
            ids.setdefault(document.id, 1)
            yield document
        elif isinstance(document, str):
            yield Document(document, unique_id(str(number), ids))
        else:
            raise CorpusError(
                f"the document number {number + 1} is {type_name(document)}; give strings, or "
                "Document(text, id)"
            )


def unique_id(name: str, ids: dict[str, int]) -> str:
    """Return `name`, numbered if it was used before; `ids` counts the uses of each."""
    if name not in ids:
        ids[name] = 1
        return name
    number = ids[name] + 1
    while f"{name}#{number}" in ids:
        number += 1
    ids[name] = number
    ids[f"{name}#{number}"] = 1
    return f"{name}#{number}"
