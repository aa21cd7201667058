"""Names the place of a passage for people: "handbook.pdf, page 12"."""

from __future__ import annotations

import re
from typing import Any

from knn_logits.engine.pieces import decoded, parts_of
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import place_at
from knn_logits.store.learned import row_of_token

_LINE = re.compile(r"line ([0-9]{1,15})")
# U+FFFD stands for a character that is cut before a token.
_WORD = re.compile(r"[^\s\ufffd]")
# The most tokens from the beginning of a paragraph to a word in it.
_MOST_TOKENS = 4096


def where(store: Datastore, entry: int, tokenizer: Any) -> tuple[str | None, str | None]:
    """Returns the title and the uri of an entry's document, with the place of the entry.

    Args:
        store: The datastore.
        entry: The entry, in [0, entries).
        tokenizer: The tokenizer that cut the text. It is needed to count lines.
    """
    if store.manifest.learned is not None:
        number, rows = row_of_token(store.values.numpy(), entry)
        return f"learned row {number} of {rows} for this token", None
    position = store.contexts.token_of(entry)
    record = store.documents[store.documents.at_token(position)]
    document = record.shown
    place = place_at(record.metadata, position - record.first)
    if place is None:
        return document.title, document.uri
    name, line = place.name, _LINE.fullmatch(place.name)
    start = record.first + place.start
    if line and position - start <= _MOST_TOKENS:
        # The place is a paragraph's first line. The text from there on shows how many lines follow,
        # unless the tokenizer drops line ends.
        ids = store.tokens[start : position + 1].tolist()
        between, token = parts_of(tokenizer, ids, [len(ids) - 1])
        after = between.count("\n") + _breaks(token)
        if place.start:
            # What the place's first token has before its last word belongs to the lines before.
            after -= decoded(tokenizer, ids[:1]).rstrip().count("\n")
        name = f"line {int(line[1]) + after}"
    uri = document.uri
    if uri is not None and place.fragment and "#" not in uri:
        uri = f"{uri}#{place.fragment}"
    return f"{document.title or document.id}, {name}", uri


def _breaks(token: str) -> int:
    """Counts the line breaks of a token before its word; 0 if it has no word."""
    word = _WORD.search(token)
    return token.count("\n", 0, word.start()) if word else 0
