"""The parts of a trace: for each token, its probabilities and the passages that caused it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

# A document with a smaller share in a token's probability is not a source of it.
LEAST_INFLUENCE = 0.05

Meaning: TypeAlias = Literal["changed", "agreed", "contradicted", "own"]


@dataclass(frozen=True)
class NeighborTrace:
    """A passage that voted for a token.

    Attributes:
        before: Text before the word.
        word: The text of the entry's token, which the passage voted for.
        after: Text after the word.
        document: The document's id.
        title: The document's title, if there is one. If the passage's place is known, the title or
            the id with the place, such as "handbook.pdf, page 12".
        uri: The document's address, if there is one, with a fragment that leads to the place.
        store: The datastore's name.
        entry: The entry's number in the datastore.
        weight: w_i, its share of p_kNN, in [0, 1].
        distance: The squared distance for "l2", the similarity for "ip" and "cosine". None for an
            occurrence of the text's end whose key was not among the nearest.
        influence: lmbda * w_i / p, its share of the token's probability.
        source: The source whose target the passage is, for an encoder-decoder model.
        matched: For an occurrence that the ∞-gram found, the number of tokens before the word that
            it shares with the text; None for a neighbor. An entry that was found both ways has
            both numbers, and its weight and influence are those of both votes.
    """

    before: str
    word: str
    after: str
    document: str
    title: str | None
    uri: str | None
    store: str
    entry: int
    weight: float
    distance: float | None
    influence: float
    source: str | None = None
    matched: int | None = None

    @property
    def snippet(self) -> str:
        """The passage as it is in its document."""
        return self.before + self.word + self.after


@dataclass(frozen=True)
class DocumentShare:
    """A document's share in a token's probability, or in a whole text.

    Attributes:
        store: The datastore's name.
        document: The document's id.
        title: The document's title, if there is one.
        uri: The document's address, if there is one.
        share: The document's share, in [0, 1].
    """

    store: str
    document: str
    title: str | None
    uri: str | None
    share: float


@dataclass(frozen=True)
class Rival:
    """The token that the model prefers, or the words that differ in a passage that a text quotes.

    Attributes:
        token: The text of the token, or of all words that differ.
        p: The probability of the token by the model alone, or of the first that differs by the
            neighbors alone.
        document: The passage's document.
        entry: The entry of the passage's first word that differs.
        passage: The passage with its words that differ, and the text around them.
        length: Number of the passage's tokens that differ.
    """

    token: str
    p: float
    document: DocumentShare | None = None
    entry: int | None = None
    passage: NeighborTrace | None = None
    length: int = 1


@dataclass(frozen=True)
class Contradiction:
    """Words of a text in whose place a passage has others, in a sentence that is about the same.

    Attributes:
        words: The words of the text, which may be in its prompt.
        token: The number of their first token in the trace; None if it is in the prompt.
        by_memory: The words of the passage.
    """

    words: str
    token: int | None
    by_memory: Rival


@dataclass(frozen=True)
class Candidate:
    """A token that might have been chosen in place of a token.

    Attributes:
        token: The text of the token.
        token_id: The id of the token.
        p: Its probability in the mixture.
        p_lm: Its probability by the language model.
        p_knn: Its probability by the neighbors.
    """

    token: str
    token_id: int
    p: float
    p_lm: float
    p_knn: float


@dataclass(frozen=True)
class TokenTrace:
    """A token and the origins of its probability.

    If no call of the processor chose the token, its probabilities are None.

    Attributes:
        token: The text of the token.
        token_id: The id of the token.
        p: Its probability in the mixture.
        p_lm: Its probability by the language model.
        p_knn: Its probability by the neighbors.
        lmbda: The weight of the neighbors at this step; 0 if there were none.
        influence: lmbda * p_knn / p, the neighbors' share of p. The rest is the model's share.
        neighbors: Passages that voted for the token. First comes one passage of each of the
            strongest documents, in their order, and then the strongest other passages.
        retrieval: How the neighbors were found: by a "search", or by following "pointers" from the
            step before.
        documents: All documents that voted for the token, the strongest first. Their shares sum
            to `influence`.
        by_model: The model's likeliest token, if it is known and is not this token.
        by_memory: The words that a passage has in a sentence like this one.
        candidates: The likeliest tokens at this position in the mixture, and the model's own
            favourite, if they were asked for. The likeliest comes first.
        verbatim: Whether the sentence of a passage that is most like the text's sentence has its
            word here, too, whatever the vote says.
        elsewhere: Whether no sentence of a passage has its word beside most of the longer words of
            the text's sentence. Only a text that is explained has such words.
        unlike: The same of a token that was generated. Its passages may speak of something else.
        special: Whether it is a token of the tokenizer's own, such as the end of a text. It
            belongs to no word, and has no part in a text's documents.
    """

    token: str
    token_id: int
    p: float | None
    p_lm: float | None
    p_knn: float | None
    lmbda: float
    influence: float
    neighbors: list[NeighborTrace] = field(default_factory=list)
    retrieval: str = "search"
    documents: list[DocumentShare] = field(default_factory=list)
    by_model: Rival | None = None
    by_memory: Rival | None = None
    candidates: list[Candidate] = field(default_factory=list)
    special: bool = False
    verbatim: bool = False
    elsewhere: bool = False
    unlike: bool = False

    @property
    def meaning(self) -> Meaning:
        """The effect of the memory on the token.

        "contradicted": the text quotes a passage that has other words here.
        "changed": the memory brought this token. The model alone would have chosen another token.
        "agreed": the memory supports this token. The model alone would have chosen it as well.
        "own": the token is the model's own, or passages have its word elsewhere only.
        """
        if self.p is None or self.p_knn is None or self.p_lm is None:
            return "own"
        if self.by_memory is not None:
            return "contradicted"
        if self.elsewhere or self.influence < LEAST_INFLUENCE or self.p <= self.p_lm:
            return "own"
        return "agreed" if self.by_model is None else "changed"


@dataclass(frozen=True)
class SequenceTrace:
    """One traced sequence.

    Attributes:
        prompt: The text that was given.
        tokens: The traced tokens after the prompt.
        apart: Whether the model read other tokens between the prompt and the text, as in a chat.
        contradictions: Where a passage says otherwise than a sentence of the text, which may begin
            in the prompt.
    """

    prompt: str
    tokens: list[TokenTrace]
    apart: bool = False
    contradictions: list[Contradiction] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The traced text."""
        return "".join(token.token for token in self.tokens)

    @property
    def alone(self) -> bool:
        """Whether the memory has no part in the text: less than 5% of each word, as with λ 0."""
        words = [token for token in self.tokens if not token.special and token.p is not None]
        return all(token.influence < LEAST_INFLUENCE for token in words)

    @property
    def documents(self) -> list[DocumentShare]:
        """Each document's share in the words, the mean over their tokens, the largest first.

        Special tokens do not count, nor do those without a letter or a digit, or those that the
        mixture gave no probability: nobody would have written them.
        """
        written = [token for token in self.tokens if not token.special and token.p != 0.0]
        tokens = [token for token in written if any(map(str.isalnum, token.token))]
        return summed(
            replace(document, share=document.share / len(tokens))
            for token in tokens
            for document in token.documents
        )


def summed(shares: Iterable[DocumentShare]) -> list[DocumentShare]:
    """Sums shares by document, the largest first. Several datastores may use an id."""
    sums: dict[tuple[str, str], DocumentShare] = {}
    for document in shares:
        before = sums.get((document.store, document.document))
        total = document.share + (before.share if before else 0.0)
        sums[document.store, document.document] = replace(document, share=total)
    return sorted(sums.values(), key=lambda document: -document.share)
