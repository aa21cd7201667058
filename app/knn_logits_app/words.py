"""Tokens grouped into what people read as words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_PUNCTUATION = ".,;:!?)]}»”"


@dataclass(frozen=True)
class Word:
    """Tokens that people read as one word.

    Attributes:
        space: White space before it.
        text: The word.
        tokens: Numbers of its tokens.
        share: The neighbors' share, that of its weakest token.
    """

    space: str
    text: str
    tokens: tuple[int, ...]
    share: float


def words_of(pieces: Sequence[tuple[str, float]]) -> list[Word]:
    """Pieces of text grouped into words; white space and a sentence's end divide them.

    White space alone is a word of its own: a passage may hold the line break and not the word.
    """
    groups: list[list[int]] = []
    ended = False
    for place, (piece, _) in enumerate(pieces):
        ends = bool(piece) and not piece.strip(_PUNCTUATION)
        if groups and not "".join(pieces[one][0] for one in groups[-1]).strip():
            ended = True
        if not groups or piece[:1].isspace() or ends or ended:
            groups.append([])
        groups[-1].append(place)
        ended = ends
    found = []
    for group in groups:
        whole = "".join(pieces[place][0] for place in group)
        bare = whole.lstrip()
        share = min(pieces[place][1] for place in group)
        found.append(Word(whole[: len(whole) - len(bare)], bare, tuple(group), share))
    return found
