"""The text around an entry of a datastore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knn_logits.store.documents import DocumentRecord

if TYPE_CHECKING:
    from knn_logits.store.datastore import Datastore


@dataclass(frozen=True)
class Passage:
    """The text around an entry; it never crosses its document's edge.

    Attributes:
        document: The document that it is from.
        before: Token ids before the entry's token.
        token: The entry's token, its value.
        after: Token ids after it.
    """

    document: DocumentRecord
    before: list[int]
    token: int
    after: list[int]


def passage_around(store: Datastore, entry: int, before: int, after: int) -> Passage:
    """Returns the text around an entry. A learned row has no text but its token.

    Args:
        store: The datastore.
        entry: The entry, in [0, entries).
        before: Number of tokens wanted before the entry's token.
        after: Number of tokens wanted after it.
    """
    if store.manifest.learned is not None:
        before = after = 0
    position = store.contexts.token_of(entry)
    document = store.documents[store.documents.at_token(position)]
    first = max(document.first, position - before)
    last = min(document.first + document.length, position + 1 + after)
    words: list[Any] = store.tokens[first:last].tolist()
    here = position - first
    return Passage(document.shown, words[:here], words[here], words[here + 1 :])
