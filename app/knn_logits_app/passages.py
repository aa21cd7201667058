"""Which documents did most for a word, and with which passage. Traces in, no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from knn_logits import NeighborTrace, TokenTrace

_SOURCES = 3
_LEAST = 0.01


@dataclass(frozen=True)
class Passage:
    """A document's part in a word.

    Attributes:
        neighbor: Its strongest passage.
        share: Its share in the word's probability.
        marked: How much of the passage, from the neighbor's word on, the word repeats.
    """

    neighbor: NeighborTrace
    share: float
    marked: str


def main_passages(chosen: Sequence[TokenTrace]) -> list[Passage]:
    """The documents that did most for a word, each with one passage."""
    found = [
        (one.store, one.document, place, one)
        for place, token in enumerate(chosen)
        for one in token.neighbors
    ]
    found.sort(key=lambda item: item[:3])
    passages = []
    for _, group in groupby(found, key=lambda item: item[:2]):
        members = list(group)
        first = members[0][2]
        best = max((one for one in members if one[2] == first), key=lambda one: one[3].influence)
        neighbor = best[3]
        share = sum(one[3].influence for one in members) / len(chosen)
        following = neighbor.word + neighbor.after
        # The passage is shown from the token on that it was found for.
        rest = "".join(token.token for token in chosen[first:])
        same = following.startswith(rest) and len(rest) > len(neighbor.word)
        passages.append(Passage(neighbor, share, rest if same else neighbor.word))
    passages.sort(key=lambda one: -one.share)
    # The first one always; others only where they matter.
    return passages[:1] + [one for one in passages[1:_SOURCES] if one.share >= _LEAST]
