"""Finds the words of a text in its tokens, as they are compared with those of a passage."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

# A sign between two digits tells numbers apart, but for one that groups thousands.
_THOUSANDS, _IN_NUMBER = re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), re.compile(r"(?<=\d)[.,:](?=\d)")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


class Word(NamedTuple):
    """A word as it is compared and as it is written, its first token, and that after its last."""

    bare: str
    written: str  # with the white space after it
    first: int
    last: int

    @property
    def ends_sentence(self) -> bool:
        """Whether it is a sign that ends a sentence, or the last word of a paragraph."""
        ends = r"\n\s*\n" if self.bare else r"[.!?]|\n\s*\n"
        return bool(re.search(ends, self.written))

    @property
    def is_small(self) -> bool:
        """Whether it has letters alone, and no capital."""
        return len(self.bare) > 1 and self.bare.isalpha() and not self.written[0].isupper()


def words_in(parts: Sequence[str], begin: int = 0) -> list[Word]:
    """Finds the words in the texts of some tokens; signs after a word are a word of their own.

    The tokens are numbered from `begin` on.
    """
    words, places = list[str](), list[tuple[int, int]]()
    for match in re.finditer(r"\S+\s*", "".join(parts)):
        written, start = match[0], match.start()
        letters = [
            at
            for at, sign in enumerate(written, 1)
            if sign.isalnum() or unicodedata.combining(sign)
        ]
        size = letters[-1] if letters and written[letters[-1] :].strip() else len(written)
        for part in filter(None, (written[:size], written[size:])):
            words.append(part)
            places.append((start, start + len(part.rstrip()) - 1))
            start += len(part)
    found = []
    ends = np.cumsum([len(part) for part in parts])
    bounds = ends.searchsorted(np.array(places, np.int64).reshape(-1, 2), side="right").tolist()
    for word, (first, last) in zip(words, bounds, strict=True):
        while first and not parts[first - 1]:
            first -= 1  # the first bytes of a character that several tokens make
        found.append(Word(_bare(word), word, begin + first, begin + last + 1))
    return found


def sentences_in(words: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Cuts words into sentences."""
    ends = [number for number, word in enumerate(words, 1) if word.ends_sentence]
    bounds = pairwise([0, *ends, len(words)])
    return [tuple(words[first:end]) for first, end in bounds if first < end]


def numbers_and_names(words: Sequence[Word]) -> set[str]:
    """The numbers and names in some words."""
    names = {word.bare for word in words if word.written[0].isupper()}
    return names.union(*(_NUMBER.findall(_THOUSANDS.sub("", word.written)) for word in words))


def bares(words: Sequence[Word]) -> list[str]:
    return [word.bare for word in words]


def number_of(words: Sequence[Word], *, names: bool = False) -> int:
    """The number of words without signs. With `names`, words with a capital in a row are one."""
    capital = [word.written[0].isupper() for word in words if word.bare]
    return len(capital) - sum(map(all, pairwise(capital))) * names


def _bare(text: str) -> str:
    """The letters and digits of a text, without case and however accents are encoded."""
    text = _THOUSANDS.sub("", unicodedata.normalize("NFKC", text).casefold())
    signs = {match.start() for match in _IN_NUMBER.finditer(text)}
    return "".join(sign for at, sign in enumerate(text) if sign.isalnum() or at in signs)
