"""Drafts the probable continuation of a text, from the memory and from the text itself.

A draft costs no forward pass, so it may be wrong. Each source of drafts has a rate of success. The
rate determines the length of its drafts. A source whose drafts fail is asked less and less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from knn_logits.mixture.memory import Memory
from knn_logits.mixture.vote import Vote

# The most tokens of a draft.
MOST = 24
# A draft ends where the chance that all its tokens are accepted falls below this.
_LEAST_CHANCE = 0.35
# A source with a lower rate is asked only once in so many steps, to see whether it has recovered.
_LEAST_RATE, _RARELY = 0.2, 12
# The weight of the latest draft in the rate.
_MEMORY = 0.3
# The number of neighbors that continue a draft, and the share of their weight that must agree on a
# token.
_FOLLOWED, _AGREEMENT = 16, 0.3
# The numbers of tokens of a suffix that is looked for earlier in the text.
_LONGEST_SUFFIX, _SHORTEST_SUFFIX = 6, 2


class Source:
    """The success of the drafts of one source.

    Attributes:
        rate: The chance that a drafted token is accepted, if those before it were.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._asked = 0

    def length(self) -> int:
        """The number of tokens that are worth drafting now."""
        self._asked += 1
        if self.rate < _LEAST_RATE:
            return 2 if self._asked % _RARELY == 0 else 0
        if self.rate > 0.99:
            return MOST
        return max(1, min(MOST, int(math.log(_LEAST_CHANCE) / math.log(self.rate))))

    def learn(self, drafted: int, accepted: int) -> None:
        """Notes how successful a draft was.

        Args:
            drafted: Number of its tokens.
            accepted: Number of its tokens that were accepted, before the first wrong one.
        """
        tried = min(drafted, accepted + 1)
        self.rate += (1 - (1 - _MEMORY) ** tried) * (accepted / tried - self.rate)


class Drafter:
    """Makes drafts for one text. At each step the first source that has a draft gives it.

    The first source are the passages that gave the latest token. The second is the text itself:
    if it contains its own end earlier, the draft repeats what followed there (prompt lookup).

    Args:
        memory: The memory that continues passages; None to draft from the text alone.
    """

    def __init__(self, memory: Memory | None) -> None:
        self._memory = memory
        self._sources = {"memory": Source(0.7), "text": Source(0.4)}
        self._latest: tuple[Source, int] | None = None

    def draft(self, ids: Sequence[int], vote: Vote | None) -> list[int]:
        """Drafts the next tokens.

        Args:
            ids: The tokens of the text.
            vote: The memory's vote on the text's last token, if there was one.

        Returns:
            The drafted tokens, or an empty list.
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
        """Notes how many tokens of the latest draft were accepted."""
        if self._latest is not None:
            source, drafted = self._latest
            source.learn(drafted, accepted)

    @staticmethod
    def from_text(ids: Sequence[int], most: int) -> list[int]:
        """Returns what followed the longest end of a text where it last occurred before."""
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
    """Returns the continuation of the passages that voted for a text's last token.

    Where passages differ, the continuation with most weight is taken.

    Args:
        memory: The memory.
        vote: The memory's vote on the token, one row.
        token: The text's last token.
        most: The most tokens to return.
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
            if store.manifest.learned is not None:
                continue  # nothing follows a learned row
            # At the end of a document this runs into the next one. That is fine for a draft.
            following = store.values[number + 1 : number + 1 + most]
            passages.append((share, following.tolist()))
    return _agreed(passages, most)


def _agreed(passages: list[tuple[float, list[int]]], most: int) -> list[int]:
    """Returns the tokens that most of the weight agrees on, up to the first disagreement."""
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
