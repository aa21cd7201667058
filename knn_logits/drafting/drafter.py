"""What a text probably goes on with: drafts from its memory and from the text itself.

A draft costs no forward pass, so it may be wrong. Its length follows from how often the drafts of
its source came true; a source whose drafts fail is asked less and less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from knn_logits.memory import Memory
from knn_logits.vote import Vote

# Tokens of a draft at most.
MOST = 24
# A draft ends where the chance that all of it comes true falls below this.
_LEAST_CHANCE = 0.35
# A source with a lower rate is asked in one step of so many only, to see whether it has recovered.
_LEAST_RATE, _RARELY = 0.2, 12
# How much the latest draft says about the next.
_MEMORY = 0.3
# Neighbors that continue a draft, and the part of their weight that has to agree on a token.
_FOLLOWED, _AGREEMENT = 16, 0.3
# Tokens of a suffix that is looked for earlier in the text.
_LONGEST_SUFFIX, _SHORTEST_SUFFIX = 6, 2


class Source:
    """How well the drafts of one source came true.

    Attributes:
        rate: The chance that a drafted token comes true, where those before it did.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._asked = 0

    def length(self) -> int:
        """Tokens that are worth drafting now; 0 for none."""
        self._asked += 1
        if self.rate < _LEAST_RATE:
            return 2 if self._asked % _RARELY == 0 else 0
        if self.rate > 0.99:
            return MOST
        return max(1, min(MOST, int(math.log(_LEAST_CHANCE) / math.log(self.rate))))

    def learn(self, drafted: int, accepted: int) -> None:
        """Notes what became of a draft.

        Args:
            drafted: Its tokens.
            accepted: Those that came true, up to the first that did not.
        """
        tried = min(drafted, accepted + 1)
        self.rate += (1 - (1 - _MEMORY) ** tried) * (accepted / tried - self.rate)


class Drafter:
    """Drafts for one text, at each step from the first source that has any.

    The continuations of the passages that gave the latest token come first. Where there are none,
    the longest end of the text that stood in it before goes on as it did then (prompt lookup).

    Args:
        memory: Where passages go on; None for the text alone.
    """

    def __init__(self, memory: Memory | None) -> None:
        self._memory = memory
        self._sources = {"memory": Source(0.7), "text": Source(0.4)}
        self._latest: tuple[Source, int] | None = None

    def draft(self, ids: Sequence[int], vote: Vote | None) -> list[int]:
        """Tokens that may come next.

        Args:
            ids: The text.
            vote: What the memory said about its last token; None for nothing.
        """
        found: list[int] = []
        for name, source in self._sources.items():
            most = source.length()
            if most:
                if name == "text":
                    found = self.from_text(ids, most)
                elif vote is not None and self._memory is not None:
                    found = from_memory(self._memory, vote, ids[-1], most)
            if found:
                self._latest = source, len(found)
                return found
        self._latest = None
        return found

    def learn(self, accepted: int) -> None:
        """Notes how many tokens of the latest draft came true."""
        if self._latest is not None:
            source, drafted = self._latest
            source.learn(drafted, accepted)

    @staticmethod
    def from_text(ids: Sequence[int], most: int) -> list[int]:
        """What followed the longest end of a text where it last stood before."""
        text = np.asarray(ids, np.int64)
        length = len(text)
        before = np.flatnonzero(text[:-1] == text[-1])
        best, longest = -1, _SHORTEST_SUFFIX - 1
        for place in before[::-1].tolist():
            same = 1
            while same < min(_LONGEST_SUFFIX, place + 1) and (
                text[place - same] == text[length - 1 - same]
            ):
                same += 1
            if same > longest:
                best, longest = place, same
                if same == _LONGEST_SUFFIX:
                    break
        return [] if best < 0 else text[best + 1 : best + 1 + most].tolist()


def from_memory(memory: Memory, vote: Vote, token: int, most: int) -> list[int]:
    """How the passages go on that spoke for a text's last token, as most of their weight says.

    Args:
        memory: The memory.
        vote: What it said about the token, one row.
        token: The text's last token.
        most: Tokens at most.
    """
    columns = (vote.neighbors.values[0] == token).nonzero()[:, 0]
    if not len(columns):
        return []
    weights = vote.log_weights[0, columns]
    if len(columns) > _FOLLOWED:
        weights, order = weights.topk(_FOLLOWED)
        columns = columns[order]
    shares = weights.exp().tolist()
    passages = []
    for entry, share in zip(vote.neighbors.ids[0, columns].tolist(), shares, strict=True):
        if share > 0.0:
            store, number = memory.retriever.locate(entry)
            # Where a document ends here the next one follows; a draft may be wrong.
            following = store.values[number + 1 : number + 1 + most]
            passages.append((share, following.tolist()))
    return _agreed(passages, most)


def _agreed(passages: list[tuple[float, list[int]]], most: int) -> list[int]:
    """The continuation that most weight agrees on, as far as it does."""
    total = sum(share for share, _ in passages)
    drafted: list[int] = []
    while passages and len(drafted) < most:
        place = len(drafted)
        votes: dict[int, float] = {}
        for share, tokens in passages:
            if place < len(tokens):
                votes[tokens[place]] = votes.get(tokens[place], 0.0) + share
        if not votes:
            break
        best = max(votes, key=lambda one: votes[one])
        if votes[best] < _AGREEMENT * total:
            break
        drafted.append(best)
        passages = [one for one in passages if place < len(one[1]) and one[1][place] == best]
    return drafted
