"""`Document`, and checks of what users give where documents are expected.

This module knows which texts can be cut into tokens and written down. It reads no file, which
`reading` does.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from knn_logits.corpus.rows import Place, type_name
from knn_logits.errors import CorpusError

Given = TypeVar("Given")
# A longer text is no path on any usual system.
_LONGEST_PATH = 4096


@dataclass(frozen=True)
class Document:
    """One text of a corpus.

    Attributes:
        text: The text, which can be encoded as UTF-8. If the document is a pair, it is the target.
            `read_corpus` returns no blank text.
        id: The document's name. `read_corpus` returns unique ids, but the parts of one very large
            file share an id. If the file gives no id, it is the file's path relative to the given
            folder. In a file of several documents, `:` and the number of the line or row (from 1)
            follow.
        title: The title, if the file gives one.
        uri: The address of the document, if the file gives one. For a text file it is the
            relative path.
        metadata: The other fields of the document's row, all of them JSON values. Parquet and `hf:`
            give dates and decimals as text, and their nulls and bytes are left out.
        source: The text that an encoder reads, if the document is a pair.
        places: Pages, headings or lines of the text, in order. A source in a trace names the place
            that it is in. A datastore keeps places if its tokenizer is a fast one.

    Raises:
        CorpusError: when a field has another type, or holds half a character.
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
    """Checks that a value is a text that can be cut into tokens and written down.

    Args:
        value: The value that is given.
        what: How a message names the value.

    Raises:
        CorpusError: when the value is not a string, or holds half a character.
    """
    if not isinstance(value, str):
        raise CorpusError(f"{what} is {type_name(value)}, not a string; give a string")
    try:
        if not value.isascii():
            value.encode("utf-8")
    except UnicodeEncodeError:
        raise CorpusError(
            f"{what} holds a lone surrogate, which is not a character; replace or remove it"
        ) from None
    return value


def several(given: Iterable[Given], what: str) -> Iterable[Given]:
    """Checks that several things are given. A single string would be read as its characters.

    Raises:
        CorpusError: when a single thing is given, or something that cannot be iterated.
    """
    if isinstance(given, (str, bytes, os.PathLike, Document, Mapping)):
        raise CorpusError(
            f"{what} must be given as a list, but a single {type(given).__name__} is given; write "
            "it in a list, [...], or read files with read_corpus"
        )
    if not isinstance(given, Iterable):
        raise CorpusError(f"{what} must be given as a list, not {type_name(given)}")
    return given


def as_documents(
    documents: Iterable[Document | str], before: Collection[str] = ()
) -> Iterator[Document]:
    """Turns texts into documents, and numbers those without an id.

    Args:
        documents: Texts or documents.
        before: The ids of documents that come before these. The numbers continue after them.

    Raises:
        CorpusError: when a single text is given instead of several. Also, while they are read,
            when one is neither a text nor a document.
    """
    return _numbered(several(documents, "documents"), before)


def _numbered(documents: Iterable[Document | str], before: Collection[str]) -> Iterator[Document]:
    ids = dict.fromkeys(before, 1)
    for number, document in enumerate(documents, start=len(before)):
        if isinstance(document, Document):
            ids.setdefault(document.id, 1)
            yield document
        elif isinstance(document, str):
            if _is_path(document):
                raise CorpusError(
                    f"{document!r} is a file or a folder, but texts are expected here: read it "
                    f"with read_corpus([{document!r}]), or give Document({document!r}, id) if this "
                    "is the text"
                )
            yield Document(document, unique_id(str(number), ids))
        else:
            raise CorpusError(
                f"document number {number + 1} is {type_name(document)}; give strings, or "
                "Document(text, id)"
            )


def _is_path(text: str) -> bool:
    """Whether a text is surely the path of a file or folder: no words, and it is there."""
    if not 0 < len(text) <= _LONGEST_PATH or any(map(str.isspace, text)):
        return False
    if not (set(text) & {"/", os.sep} or Path(text).suffix):
        return False
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def unique_id(name: str, ids: dict[str, int]) -> str:
    """Returns `name`, with a number if it was used before. `ids` counts the uses of each name."""
    if name not in ids:
        ids[name] = 1
        return name
    number = ids[name] + 1
    while f"{name}#{number}" in ids:
        number += 1
    ids[name] = number
    ids[f"{name}#{number}"] = 1
    return f"{name}#{number}"
