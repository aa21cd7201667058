"""The documents behind a token, the largest share first, and a passage of each to show."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from knn_logits.arrays import Array
from knn_logits.engine.pieces import decoded, parts_of
from knn_logits.store.datastore import Datastore
from knn_logits.store.documents import row_of_token

Locate: TypeAlias = Callable[[int], tuple[Datastore, int]]

# Number of entries of a document that are compared with the text that follows.
_COMPARED = 32
# The most tokens after the token in which a passage and the text are compared.
_MAX_FOLLOWING = 12


class DocumentVotes(NamedTuple):
    """The votes of one document for a token."""

    store: Datastore
    number: int
    share: float
    columns: Array  # int64 [entries], its entries among the neighbors, the strongest first
    tokens: Array  # int64 [entries], the positions of these entries' tokens in `tokens.npy`


def votes_by_document(ids: Array, shares: Array, locate: Locate) -> list[DocumentVotes]:
    """Sums the votes of one step by document."""
    voting = (shares > 0.0).nonzero()[0]
    voting = voting[(-shares[voting]).argsort(kind="stable")]
    votes = []
    while len(voting):
        # The entries of one datastore are numbered in a row.
        store, entry = locate(int(ids[voting[0]]))
        entries = ids[voting] - (ids[voting[0]] - entry)
        inside = (entries >= 0) & (entries < len(store))
        columns, entries, voting = voting[inside], entries[inside], voting[~inside]
        tokens = entries + store.contexts.first_entry.searchsorted(entries, side="right")
        numbers = store.documents.first.searchsorted(tokens, side="right") - 1
        order = numbers.argsort(kind="stable")
        columns, tokens, numbers = columns[order], tokens[order], numbers[order]
        begins = np.ones(len(numbers), bool)
        begins[1:] = numbers[1:] != numbers[:-1]
        starts = begins.nonzero()[0]
        sums, strongest = np.add.reduceat(shares[columns], starts), columns[starts]
        ranks = np.lexsort((strongest, -shares[strongest], -sums))
        ends = np.append(starts[1:], len(columns))[ranks].tolist()
        of_documents = (part[ranks].tolist() for part in (numbers[starts], sums, starts))
        votes += [
            DocumentVotes(store, number, share, columns[start:end], tokens[start:end])
            for number, share, start, end in zip(*of_documents, ends, strict=True)
        ]
        if len(votes) > len(ranks):  # of several datastores
            votes.sort(key=lambda document: _rank(document, shares))
    return votes


def _rank(document: DocumentVotes, shares: Array) -> tuple[float, float, int]:
    """Among documents of the same share, the one with the strongest entry comes first."""
    first = int(document.columns[0])
    return -document.share, -float(shares[first]), first


def passage_of(votes: DocumentVotes, following: Sequence[int]) -> int:
    """Chooses the entry whose passage is shown for a document."""
    if len(votes.columns) == 1:
        return int(votes.columns[0])
    text, tokens = np.asarray(following[:_MAX_FOLLOWING], np.int64), np.asarray(votes.store.tokens)
    places = votes.tokens[:_COMPARED, None] + 1 + np.arange(len(text))
    same = (tokens[np.minimum(places, len(tokens) - 1)] == text) & (places < len(tokens))
    differing = np.concatenate([~same, np.ones((len(same), 1), bool)], axis=1)
    return int(votes.columns[int(differing.argmax(axis=1).argmax())])


def passages_of(
    documents: Sequence[DocumentVotes], shares: Array, following: Sequence[int], number: int
) -> list[int]:
    """Chooses the columns whose passages are kept: one for each document, then the strongest."""
    first = [passage_of(document, following) for document in documents[:number]]
    if len(first) == number or not documents:
        return first
    columns = np.concatenate([document.columns for document in documents])
    strongest = columns[np.argsort(-shares[columns], kind="stable")[:number]]
    rest = [column for column in strongest.tolist() if column not in first]
    return first + rest[: number - len(first)]


_LINE = re.compile(r"line ([0-9]{1,15})")
# U+FFFD stands for a character that is cut before a token.
_WORD = re.compile(r"[^\s\ufffd]")
# The most tokens from the beginning of a paragraph to a word in it.
_MOST_TOKENS = 4096


def where(store: Datastore, entry: int, tokenizer: Any) -> tuple[str | None, str | None]:
    """The title and the uri of an entry's document, with the place of the entry."""
    if store.manifest.learned is not None:
        number, rows = row_of_token(store.values.numpy(), entry)
        return f"learned row {number} of {rows} for this token", None
    return place_of(store, store.contexts.token_of(entry), tokenizer)


def place_of(store: Datastore, position: int, tokenizer: Any) -> tuple[str | None, str | None]:
    """The title and the uri of a token's document, with the place of the token."""
    record = store.documents[store.documents.at_token(position)]
    document = record.shown
    place = record.place_at(position - record.first)
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
            # The part of the first token before its last word belongs to the lines before, and so
            # does all of a token without a word.
            opening = decoded(tokenizer, ids[:1])
            after -= (opening.rstrip() or opening).count("\n")
        name = f"line {int(line[1]) + after}"
    uri = place.within(document.uri)
    title = document.title or document.id
    # The first heading of a document is often its title.
    return (title if name == f"“{title}”" else f"{title}, {name}"), uri


def _breaks(token: str) -> int:
    """Counts the line breaks of a token before its word; 0 if it has no word."""
    word = _WORD.search(token)
    return token.count("\n", 0, word.start()) if word else 0
