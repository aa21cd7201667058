"""`Trace`: for each token its probabilities and the passages that caused it. Data only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from knn_logits.errors import TraceError

_FORMAT = "knn-logits trace"
_VERSION = 1


@dataclass(frozen=True)
class NeighborTrace:
    """A passage that voted for a token.

    Attributes:
        before: Text before the word.
        word: The entry's token, the one voted for.
        after: Text after the word.
        document: The document's id.
        title: The document's title, may be missing.
        uri: Where it can be read, may be missing.
        store: The datastore's name.
        entry: The entry's number in the datastore.
        weight: w_i, its share of p_kNN, in [0, 1].
        distance: Squared distance for "l2", a similarity for "ip" and "cosine".
        influence: lmbda * w_i / p, its share of the token's probability.
        source: Of an encoder-decoder model, the source that the passage is a target of.
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
    distance: float
    influence: float
    source: str | None = None

    @property
    def snippet(self) -> str:
        """The passage as it stands in its document."""
        return self.before + self.word + self.after


@dataclass(frozen=True)
class TokenTrace:
    """A token and where its probability came from.

    Attributes:
        token: Its text.
        token_id: Its id.
        p: Its probability in the mixture.
        p_lm: Its probability by the language model.
        p_knn: Its probability by the neighbors.
        lmbda: The neighbors' weight at this step, 0 where none was found.
        influence: lmbda * p_knn / p: the neighbors' share of p; the model's is the rest.
        neighbors: Passages that voted for it, the most influential first.
        retrieval: How its neighbors were found: by a "search", by following "pointers" from the
            step before, or not at all ("skipped").

    The probabilities are None for a token that no call of the processor accounts for.
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


@dataclass(frozen=True)
class SequenceTrace:
    """One sequence: what was given, and what was traced."""

    prompt: str
    tokens: list[TokenTrace]

    @property
    def text(self) -> str:
        """The traced text."""
        return "".join(token.token for token in self.tokens)


@dataclass(frozen=True)
class Trace:
    """The sequences of one `generate()`, or one explained text."""

    sequences: list[SequenceTrace]

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, number: int) -> SequenceTrace:
        return self.sequences[number]

    def __iter__(self) -> Iterator[SequenceTrace]:
        return iter(self.sequences)

    def show(self, sources: int = 8) -> None:
        """Prints the text to the terminal, coloured by influence, and the main sources below.

        Args:
            sources: Passages listed for each sequence.
        """
        from knn_logits.trace.render import show

        show(self, sources)

    def _repr_html_(self) -> str:
        from knn_logits.trace.render import to_html

        return to_html(self)

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain values, as `save` writes it."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "sequences": [
                {
                    "prompt": one.prompt,
                    "text": one.text,
                    "tokens": [token_dict(token) for token in one.tokens],
                }
                for one in self.sequences
            ],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace as JSON."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Reads a trace that `save` wrote.

        Raises:
            TraceError: when the file is none.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != _FORMAT or content["version"] != _VERSION:
                raise ValueError("another format or version")
            return cls([_sequence(one) for one in content["sequences"]])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise TraceError(
                f"{path} is no trace ({error}); give a file that Trace.save() wrote"
            ) from error


def token_dict(token: TokenTrace) -> dict[str, Any]:
    """A token as plain values, with each neighbor's whole snippet beside its parts."""
    plain = asdict(token)
    for neighbor, one in zip(plain["neighbors"], token.neighbors, strict=True):
        neighbor["snippet"] = one.snippet
    return plain


def _sequence(content: dict[str, Any]) -> SequenceTrace:
    tokens = []
    for token in content["tokens"]:
        neighbors = [
            NeighborTrace(**{name: value for name, value in one.items() if name != "snippet"})
            for one in token["neighbors"]
        ]
        tokens.append(TokenTrace(**{**token, "neighbors": neighbors}))
    return SequenceTrace(content["prompt"], tokens)
