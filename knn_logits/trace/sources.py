"""Words of a trace with the document that did most for them. Data only; nothing is drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from knn_logits.trace.trace import (
    LEAST_INFLUENCE,
    DocumentShare,
    NeighborTrace,
    Rival,
    SequenceTrace,
    TokenTrace,
)


@dataclass(frozen=True)
class Source:
    """Words in a row, and the document that did most for them.

    A word of several tokens owes a document what its weakest token does: a document that gave the
    beginning of a number only is no source of the number.

    Attributes:
        words: The words, as they stand in the text.
        tokens: Their tokens.
        total: Share of all neighbors in the words' probability: the weakest token's, and the mean
            over several words.
        document: The document, with its own share, counted likewise.
        neighbor: The passage of the first token; None where none of those kept says the words.
        after: What follows the words in the passage.
    """

    words: str
    tokens: list[TokenTrace]
    total: float
    document: DocumentShare
    neighbor: NeighborTrace | None
    after: str = ""

    def joined(self, other: Source) -> Source | None:
        """Both as one, where the other goes on in the same passage; None where it does not."""
        one, two = self.neighbor, other.neighbor
        if one is None or two is None or _place(self.document) != _place(other.document):
            return None
        if two.entry != one.entry + len(self.tokens):
            return None
        tokens = [*self.tokens, *other.tokens]
        part = len(self.tokens) / len(tokens)
        total = part * self.total + (1 - part) * other.total
        share = part * self.document.share + (1 - part) * other.document.share
        document = replace(self.document, share=share)
        return Source(self.words + other.words, tokens, total, document, one, other.after)


def words_of(tokens: Sequence[TokenTrace]) -> list[list[TokenTrace]]:
    """Tokens grouped into words: a token that opens with white space opens a word.

    White space alone is a word of its own: a passage may hold the line break and not the word.
    """
    words: list[list[TokenTrace]] = []
    for token in tokens:
        blank = bool(words) and not "".join(one.token for one in words[-1]).strip()
        if not words or token.token[:1].isspace() or blank:
            words.append([])
        words[-1].append(token)
    return words


def share_of(tokens: Sequence[TokenTrace]) -> float:
    """The neighbors' share in a word: that of its weakest token."""
    return min((token.influence for token in tokens), default=0.0)


def contradiction(tokens: Sequence[TokenTrace]) -> Rival | None:
    """What the memory says in place of a word.

    Args:
        tokens: The tokens of one word.

    Returns:
        The neighbors' token at the first place where they speak against the word; None where they
        do not.
    """
    found = (token.by_memory for token in tokens if token.meaning == "contradicted")
    return next(found, None)


def documents_of(token: TokenTrace) -> list[DocumentShare]:
    """The documents behind a token; of an earlier trace those of the passages that it kept."""
    if token.documents:
        return token.documents
    found: dict[tuple[str, str], DocumentShare] = {}
    for one in token.neighbors:
        share = DocumentShare(one.store, one.document, one.title, one.uri, one.influence)
        known = found.get(_place(share))
        found[_place(share)] = replace(share, share=one.influence + (known.share if known else 0.0))
    return sorted(found.values(), key=lambda one: -one.share)


def main_sources(sequence: SequenceTrace, number: int) -> list[Source]:
    """What owes most to a document, in the order of the text.

    Words that follow one another in the text and in the passage come as one.
    """
    found: list[Source] = []
    last: Source | None = None
    for tokens in words_of(sequence.tokens):
        source = source_of(tokens)
        joined = last.joined(source) if last is not None and source is not None else None
        if joined is not None:
            found[-1] = last = joined
            continue
        last = source
        if source is not None:
            found.append(source)
    listed = [source for source in found if source.words.strip()]
    strongest = sorted(listed, key=lambda one: -one.document.share * len(one.tokens))[:number]
    kept = {id(source) for source in strongest}
    return [source for source in listed if id(source) in kept]


def source_of(tokens: Sequence[TokenTrace]) -> Source | None:
    """The document that did most for all tokens of a word.

    Returns:
        None where no document did at least a twentieth of each token, or where the mixture made the
        word less likely than the model alone does.
    """
    found = word_sources(tokens, 1) if _more_likely(tokens) else []
    return found[0] if found and found[0].document.share >= LEAST_INFLUENCE else None


def word_sources(tokens: Sequence[TokenTrace], number: int = 3) -> list[Source]:
    """The documents that did most for all tokens of a word, each with a passage that says the word.

    Args:
        tokens: The tokens of one word.
        number: Documents wanted.

    Returns:
        The strongest first. A document's share is that in the weakest token; one that is behind a
        part of the tokens only is left out.
    """
    shares = [{_place(one): one for one in documents_of(token)} for token in tokens]
    common = set(shares[0]).intersection(*shares[1:]) if shares else set()
    weakest = {place: min(one[place].share for one in shares) for place in common}
    places = sorted(common, key=lambda one: (-weakest[one], -shares[0][one].share, one))
    text = "".join(token.token for token in tokens)
    found = []
    for place in places[:number]:
        document = replace(shares[0][place], share=weakest[place])
        neighbor, after = None, ""
        for one in tokens[0].neighbors:
            passage = one.word + one.after
            if (one.store, one.document) == place and passage.startswith(text):
                neighbor, after = one, passage[len(text) :]
                break
        found.append(Source(text, list(tokens), share_of(tokens), document, neighbor, after))
    return found


def _more_likely(tokens: Sequence[TokenTrace]) -> bool:
    before = after = 1.0
    for token in tokens:
        if token.p is not None and token.p_lm is not None:
            before, after = before * token.p_lm, after * token.p
    return after >= before


def _place(document: DocumentShare) -> tuple[str, str]:
    """What tells a document from all others: datastores may use the same ids."""
    return document.store, document.document
