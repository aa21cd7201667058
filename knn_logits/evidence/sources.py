"""Finds the sources of words in a trace. It handles data only, and shows nothing."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from knn_logits.evidence.records import (
    LEAST_INFLUENCE,
    DocumentShare,
    NeighborTrace,
    SequenceTrace,
    TokenTrace,
)


@dataclass(frozen=True)
class Source:
    """Consecutive words, and the document with the largest share in them.

    A document's share in a word of several tokens is the mean of its shares in them, and at most
    that of all neighbors in the word. A document that gave only some of the tokens, such as the
    beginning of a number, is not a source of the word.

    Attributes:
        words: The words, as they are in the text.
        tokens: The tokens of the words.
        total: The share of all neighbors in the words' probability. For a word it is the share in
            the weakest token, and for several words the mean.
        document: The document with its share, computed in the same way.
        neighbor: The passage of the first token; None if no kept passage contains the words.
        after: The text that follows the words in the passage.
    """

    words: str
    tokens: list[TokenTrace]
    total: float
    document: DocumentShare
    neighbor: NeighborTrace | None
    after: str = ""

    def joined(self, other: Source) -> Source | None:
        """Joins this source with the next one; None if that is not from the same passage."""
        passage, following = self.neighbor, other.neighbor
        if passage is None or following is None or _place(self.document) != _place(other.document):
            return None
        if following.entry != passage.entry + len(self.tokens):
            return None
        tokens = [*self.tokens, *other.tokens]
        part = len(self.tokens) / len(tokens)
        total = part * self.total + (1 - part) * other.total
        share = part * self.document.share + (1 - part) * other.document.share
        document = replace(self.document, share=share)
        if not self.words.strip():
            # The words begin on the line of the first that is seen.
            passage = replace(passage, title=following.title, uri=following.uri)
        return Source(self.words + other.words, tokens, total, document, passage, other.after)


# Signs that end a word and do not belong to it.
PUNCTUATION = ".,;:!?)]}»”\"'"
# Maximum length of a lower-case word that says nothing about its document, such as "the".
_SHORT_WORD_LENGTH = 3
_AROUND_WORD = string.whitespace + "\u00a0([{«“`*_" + PUNCTUATION


_Token = TypeVar("_Token", bound=Any)  # it has `token`, its text, and `special`


def words_of(tokens: Sequence[_Token]) -> list[list[_Token]]:
    """Groups tokens into words, which white space separates."""
    words: list[list[_Token]] = []
    for token in tokens:
        if token.special:
            continue
        before = "".join(part.token for part in words[-1]) if words else ""
        if token.token[:1].isspace() or not before or before[-1].isspace():
            words.append([])
        words[-1].append(token)
    return [part for word in words for part in _parts(word)]


def _parts(word: list[_Token]) -> list[list[_Token]]:
    """A word, and the signs behind it as a word of their own."""
    end = len(word)
    while end and word[end - 1].token and not word[end - 1].token.strip().strip(PUNCTUATION):
        end -= 1
    return [part for part in (word[:end], word[end:]) if part]


def share_of(tokens: Sequence[TokenTrace]) -> float:
    """The neighbors' share in a word, which is their share in its weakest token."""
    return min((token.influence for token in tokens), default=0.0)


def main_sources(sequence: SequenceTrace, number: int) -> list[Source]:
    """Returns the words with the largest shares of documents, in the order of the text.

    Words that are consecutive in both the text and the passage make one source.

    Args:
        sequence: The traced sequence.
        number: The most sources to return.
    """
    sources: list[Source] = []
    last: Source | None = None
    for tokens in words_of(sequence.tokens):
        source = source_of(tokens)
        joined = last.joined(source) if last is not None and source is not None else None
        if joined is not None:
            sources[-1] = last = joined
            continue
        last = source
        if source is not None:
            sources.append(source)
    # Neither signs nor words such as "of" and "the" name a document by themselves.
    words = [source.words.strip(_AROUND_WORD) for source in sources]
    listed = [
        source
        for source, word in zip(sources, words, strict=True)
        if any(map(str.isalnum, word)) and not (word.islower() and len(word) <= _SHORT_WORD_LENGTH)
    ]
    strongest = sorted(listed, key=lambda source: -source.document.share * len(source.tokens))
    shown = {id(source) for source in strongest[:number]}
    return [source for source in listed if id(source) in shown]


def source_of(tokens: Sequence[TokenTrace]) -> Source | None:
    """Finds the document with the largest share in all tokens of a word."""
    meanings = {token.meaning for token in tokens}
    supported = meanings & {"changed", "agreed"} and "contradicted" not in meanings
    strongest = word_sources(tokens, 1) if supported else []
    return strongest[0] if strongest and strongest[0].document.share >= LEAST_INFLUENCE else None


def word_sources(tokens: Sequence[TokenTrace], number: int = 3) -> list[Source]:
    """Finds the documents with the largest shares in a word, each with a passage of the word.

    Args:
        tokens: The tokens of one word.
        number: The most documents to return.

    Returns:
        The sources, the strongest first, as `Source` explains. A document behind only some of the
        tokens is left out.
    """
    shares = [{_place(share): share for share in token.documents} for token in tokens]
    common = set(shares[0]).intersection(*shares[1:]) if shares else set()
    total = share_of(tokens)
    mean = {
        place: min(total, sum(share[place].share for share in shares) / len(shares))
        for place in common
    }
    places = sorted(common, key=lambda place: (-mean[place], -shares[0][place].share, place))
    text = "".join(token.token for token in tokens)
    sources = []
    for place in places[:number]:
        document, neighbor, after = replace(shares[0][place], share=mean[place]), None, ""
        for passage in tokens[0].neighbors:
            words = passage.word + passage.after
            if (passage.store, passage.document) == place and words.startswith(text):
                neighbor, after = passage, words[len(text) :]
                break
        sources.append(Source(text, list(tokens), total, document, neighbor, after))
    return sources


def _place(document: DocumentShare) -> tuple[str, str]:
    """Identifies a document. Its id does not suffice, since several datastores may use it."""
    return document.store, document.document
