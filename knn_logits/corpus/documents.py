"""`Document`, and checks of values that users pass as documents."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from knn_logits.corpus.blocks import Block, text_blocks
from knn_logits.errors import CorpusError

Item = TypeVar("Item")
# Soft hyphens, and spaces and joiners of no width, which no search or quotation has. The joiners of
# letters, U+200C and U+200D, have a meaning in Persian, in Hindi and in emoji.
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]")


def with_line_feeds(text: str) -> str:
    r"""Returns a text as a file has it: no mark at its start, and `\n` for every line end."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def visible(text: str) -> str:
    """Returns a text without soft hyphens and characters of no width."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


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
        blocks: The headings, paragraphs, list items, table rows and code of the text, in order. A
            source in a trace names the place of its block. Without blocks, a text is cut as a
            `.txt` file is. A datastore keeps blocks if its tokenizer is a fast one.

    Raises:
        CorpusError: when a field has another type, or holds half a character.
    """

    text: str
    id: str
    title: str | None = None
    uri: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    source: str | None = None
    blocks: Sequence[Block] = ()

    def __post_init__(self) -> None:
        checked_text(self.id, "a document's id")
        for name in ("text", "title", "uri", "source"):
            value = getattr(self, name)
            if value is not None or name == "text":
                checked_text(value, f"the {name} of the document {self.id[:80]!r}")
        if not isinstance(self.metadata, Mapping):
            raise CorpusError(
                f"the metadata of the document {self.id[:80]!r} must be a mapping, not a "
                f"{type(self.metadata).__name__}"
            )
        if not self.blocks and self.source is None:
            object.__setattr__(self, "blocks", text_blocks(self.text))


def checked_text(value: object, label: str) -> str:
    """Returns a value, and refuses one that is no text or holds half a character."""
    if not isinstance(value, str):
        raise CorpusError(f"{label} must be a string, not a {type(value).__name__}")
    try:
        if not value.isascii():
            value.encode("utf-8")
    except UnicodeEncodeError:
        raise CorpusError(
            f"{label} contains a lone surrogate, which is not a valid character; replace or "
            "remove it"
        ) from None
    return value


def several(values: Iterable[Item], label: str) -> Iterable[Item]:
    """Refuses a single value, such as a string, which would be read as its characters."""
    single = isinstance(values, (str, bytes, os.PathLike, Document, Mapping))
    if single or not isinstance(values, Iterable):
        raise CorpusError(
            f"{label} must be a list, not a single {type(values).__name__}; put it in a list, "
            "[...], or read files with read_corpus"
        )
    return values


def as_documents(
    documents: Iterable[Document | str], before: Collection[str] = ()
) -> Iterator[Document]:
    """Turns texts into documents, and numbers those without an id after the ids in `before`."""
    return _numbered(several(documents, "documents"), before)


def _numbered(documents: Iterable[Document | str], before: Collection[str]) -> Iterator[Document]:
    ids = dict.fromkeys(before, 1)
    for number, document in enumerate(documents, start=len(before)):
        if isinstance(document, Document):
            ids.setdefault(document.id, 1)
            yield document
        elif isinstance(document, str):
            if re.fullmatch(r"\S*[/.]\S*", document) and is_there(document):
                raise CorpusError(
                    f"{document!r} is a file or a folder, but texts are expected here: use "
                    f"read_corpus([{document!r}]), or pass Document({document!r}, id) if this is "
                    "the text"
                )
            yield Document(document, unique_id(str(number), ids))
        else:
            raise CorpusError(
                f"document number {number + 1} is a {type(document).__name__}; pass strings, or "
                "Document(text, id)"
            )


def is_there(name: str) -> bool:
    """Whether a file or a folder has this name, which may be one that no system allows."""
    return os.path.exists(name)  # noqa: PTH110 (that of Path raises errors)


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
