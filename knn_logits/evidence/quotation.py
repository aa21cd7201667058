"""Finds where a text says something else than a passage that it otherwise quotes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.pieces import InnerText
from knn_logits.search.neighbors import Neighbors
from knn_logits.store.datastore import Datastore

# A passage is compared with the text where this many tokens are the same, and a text has what a
# passage says word for word where that many are.
_MIN_RUN, _MIN_SHARED = 3, 6
# The most words of a difference on each side.
_FURTHEST = 8
# The most passages that are compared at one position, and the most tokens around those that are the
# same.
_PASSAGES, _REACH = 8, 56
# Number of the strongest voters for a word whose sentences are compared with the text's.
_VOTERS = 3
# Minimum number of words that are the same around a difference. Capitalized words do not count,
# since lines such as "Status: Final" are in many documents. Another number or name needs fewer.
_WORDS, _FEWER = 4, 3
# Minimum ratio of the words that are the same, in the sentence around a difference, to its others.
# A paraphrase has a few words in a row with its passage, too.
_MOSTLY = 2
# The most words that open a sentence otherwise than the passage's, if all others are the same.
_OPENING = 2
_NO_VOTES = np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64)
# A sign between two digits tells numbers apart, but for one that groups thousands.
_THOUSANDS, _IN_NUMBER = re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), re.compile(r"(?<=\d)[.,:](?=\d)")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


@dataclass(frozen=True)
class Difference:
    """Words of a text in whose place a passage has others, between words that are the same."""

    first: int  # the words are the tokens [first, last) of the text,
    last: int
    store: int
    begin: int  # and those of the passage stand at [begin, end) in the datastore's tokens
    end: int
    same: int  # number of words before and after them that are the same


@dataclass
class _Run:
    """Tokens [first, last) of a text that a passage has too, from the position `begin` on."""

    first: int
    last: int
    begin: int


class Quotations:
    """Compares a text with its neighbors, word for word."""

    def __init__(self, stores: Sequence[Datastore]) -> None:
        self._stores = stores
        self._bounds = np.cumsum([0, *(len(store) for store in stores)])
        # By datastore, document, and the distance of the passage from the text in tokens.
        self._runs: dict[tuple[int, int, int], list[_Run]] = {}
        self._supported: set[int] = set()
        self._compared: set[int] = set()  # places of tokens that some passage has in a row
        # Passages whose words are those of the text up to the next place, by that place.
        self._going_on: dict[int, set[tuple[int, int]]] = {}
        self._votes: dict[int, tuple[Array, Array, Array]] = {}

    def look(self, ids: Array, place: int, neighbors: Neighbors, weights: Tensor) -> None:
        """Compares the text before a token with the text before its neighbors."""
        entries, values = neighbors.ids[0].numpy(), neighbors.values[0].numpy()
        self._votes[place] = values, weights[0].numpy(), entries
        matches: list[tuple[int, int, int]] = []
        # Entries without a share in the vote do not count.
        voting = (entries >= 0) & (weights[0].numpy() > -np.inf)
        for number, positions in self._positions(entries[voting]):
            store = self._stores[number]
            tokens, first = np.asarray(store.tokens), store.documents.first
            matches += (
                (length, number, position)
                for position, length in _alike(tokens, first, positions, ids[:place])
            )
        quoted = {match for match in matches if match[0] >= _MIN_SHARED}
        on = {match[1:] for match in quoted} | self._going_on.pop(place, set())
        same = [
            (number, position)
            for number, position in sorted(on)
            if self._stores[number].tokens[position] == ids[place]
        ]
        if same:
            self._supported.add(place)
            # An approximate search may miss them at the next place.
            self._going_on[place + 1] = {
                (number, position + 1)
                for number, position in same[:_PASSAGES]
                if position + 1 < self._document(number, position)[2]
            }
        matches.sort(key=lambda match: -match[0])
        for length, number, position in matches[:_PASSAGES]:
            if length >= _MIN_SHARED:
                self._compared.update(range(place - length, place))
            document, _, _ = self._document(number, position)
            runs = self._runs.setdefault((number, document, position - place), [])
            if not runs or runs[-1].last < place - length:
                runs.append(_Run(place - length, place, position - length))
            runs[-1].last = place

    def _positions(self, entries: Array) -> Iterator[tuple[int, Array]]:
        """The positions of entries in the tokens of their datastores, by datastore."""
        for number, store in enumerate(self._stores):
            numbers = entries - self._bounds[number]
            if len(self._stores) > 1:
                numbers = numbers[(numbers >= 0) & (numbers < len(store))]
            yield number, numbers + store.contexts.first_entry.searchsorted(numbers, side="right")

    def _document(self, store: int, position: int) -> tuple[int, int, int]:
        """The document of a position, and its first and last bound."""
        documents = self._stores[store].documents
        number = int(documents.at_token(position))
        return number, documents[number].first, documents[number].first + documents[number].length

    def verbatim(self, differences: Sequence[Difference]) -> set[int]:
        """The places whose token a passage has, too, after the same six tokens or among them."""
        differing = {place for gap in differences for place in range(gap.first, gap.last)}
        return self._supported | (self._compared - differing)

    def elsewhere(self, ids: Array, text: InnerText) -> set[int]:
        """The places of words that no sentence which is like theirs has.

        It is one that voted, and has most longer words of the text's sentence. Words within a
        longer quotation do not need it, but for numbers.
        """
        words, found = words_in(text.parts(ids)), set[int]()
        quoted = self._supported | self._compared
        while words:
            sentence = words[: len(list(takewhile(_goes_on, words))) + 1]
            words = words[len(sentence) :]
            like = self._like(sentence, ids, text)
            for word in sentence:
                if not any(word.bare in one for one in like):
                    places = set(range(word.first, word.last))
                    found |= places if _has_digit(word) else places - quoted
        return found

    def _like(self, sentence: Sequence[_Word], ids: Array, text: InnerText) -> list[set[str]]:
        """The words of sentences that have most longer words of a sentence, and voted for one."""
        content, found = _content(sentence), list[set[str]]()
        for word in sentence:
            if word.bare not in content and not _has_digit(word):
                continue
            values, weights, entries = self._votes.get(word.last - 1, _NO_VOTES)
            agreeing = (values == ids[word.last - 1]) & (weights > -np.inf)
            strongest = np.argsort(-weights[agreeing], kind="stable")[:_VOTERS]
            for number, positions in self._positions(entries[agreeing][strongest]):
                for position in positions.tolist():
                    _, theirs = self._sentences(number, position, 1, text)
                    if 2 * len(content & _content(theirs)) > len(content):
                        found.append({their.bare for their in theirs})
        return found

    def p_knn(self, place: int, token: int) -> float:
        """The probability of a token by the neighbors at a place of the text."""
        values, log_weights, _ = self._votes.get(place, _NO_VOTES)
        return float(np.exp(log_weights[values == token]).sum())

    def differences(self, ids: Array, text: InnerText, elsewhere: set[int]) -> list[Difference]:
        """Finds the differences from the passages that the text quotes, in the text's order."""
        words, known = words_in(text.parts(ids)), self._supported | self._compared
        found = [
            gap
            for (store, _, _), runs in self._runs.items()
            for run in runs
            if not {run.first - 1, run.last} <= known
            for gap in self._around(store, run, words, text, elsewhere)
        ]
        chosen: list[Difference] = []
        for gap in sorted(found, key=lambda gap: -gap.same):
            if all(gap.last <= other.first or gap.first >= other.last for other in chosen):
                chosen.append(gap)
        return sorted(chosen, key=lambda gap: gap.first)

    def _covers(self, first: int, last: int) -> bool:
        """Whether a passage has the tokens [first, last) of the text."""
        return any(
            run.first <= first
            and run.last + (run.last in self._supported) >= last
            and run.last - run.first >= _MIN_SHARED
            for runs in self._runs.values()
            for run in runs
        )

    def _sentences(
        self, store: int, begin: int, size: int, text: InnerText
    ) -> tuple[int, Sequence[_Word]]:
        """The sentences of some tokens of a document, and the position that they count from."""
        _, first, end = self._document(store, begin)
        first = max(first, begin - _REACH)
        passage = self._stores[store].tokens[first : min(end, begin + size + _REACH)]
        words = words_in(text.parts(passage.tolist()))
        return first, _sentences(words, begin - first, begin - first + size)

    def _around(
        self, store: int, run: _Run, every: Sequence[_Word], text: InnerText, elsewhere: set[int]
    ) -> Iterator[Difference]:
        """Finds the differences between the sentences of a run in a passage and in the text."""
        begin, theirs = self._sentences(store, run.begin, run.last - run.first, text)
        mine = _sentences(every, run.first, run.last)
        matcher = SequenceMatcher(None, [w.bare for w in mine], [w.bare for w in theirs], False)
        codes = matcher.get_opcodes()
        alike = [w for a, _, size in matcher.get_matching_blocks() for w in mine[a : a + size]]
        enough = min(len(_content(alike)), sum(map(_is_small, alike))) >= _FEWER
        mostly = enough and 2 * len(alike) > min(len(mine), len(theirs))
        # White space that both have is in no sentence.
        if codes and _opens_otherwise(mine, theirs, codes):
            # The word after them stands on both sides, too. The text's first token is not traced.
            _, _, b, _, d = codes[0]
            one = int(mine[b].last == 1)
            last, span = mine[b + one].last, (begin + theirs[0].first, begin + theirs[d + one].last)
            if not self._covers(mine[0].first, last):
                yield Difference(mine[0].first, last, store, *span, len(alike) - 1 - one)
        # Other words before and after all those that are the same are no difference.
        for number, (kind, a, b, c, d) in enumerate(codes[1:-1], start=1):
            same = "".join(w.bare for w in mine[a:b]) == "".join(w.bare for w in theirs[c:d])
            if kind == "equal" or same or max(b - a, d - c) > _FURTHEST:
                continue
            # Sentences that were put in or left out are no difference, and headings neither.
            if any(map(_ends_sentence, (*mine[a:b], *theirs[c:d]))):
                continue
            left, right = codes[number - 1][1], codes[number + 1][2]
            size, beside = max(b - a, d - c), a - left + right - b
            new = [w for w in mine[a:b] if not elsewhere.isdisjoint(range(w.first, w.last))]
            ours, others = _telling(new) - _telling(theirs), _telling(theirs[c:d]) - _telling(mine)
            other = {one[0].isdigit() for one in ours} & {one[0].isdigit() for one in others}
            named = mostly and other and beside >= _FEWER and _goes_on(mine[a - 1])
            if not (named or _is_quoted(mine[:a][::-1], mine[b:], a - left, right - b, size)):
                continue
            # It is in another passage after the same word, too.
            if self._covers(mine[a - 1].first, mine[max(a, b - 1)].last):
                continue
            if a == b or c == d:
                # Words were left out or put in: the word beside them stands on both sides.
                a, b, c, d = (a, b + 1, c, d + 1) if mine[b].bare else (a - 1, b, c - 1, d)
            span = begin + theirs[c].first, begin + theirs[d - 1].last
            yield Difference(mine[a].first, mine[b - 1].last, store, *span, right - left - (b - a))


def _opens_otherwise(
    mine: Sequence[_Word], theirs: Sequence[_Word], codes: Sequence[tuple[str, int, int, int, int]]
) -> bool:
    """Whether a passage has all but the first words, as of "Open it" and "Do not open it"."""
    (kind, _, b, _, d), *rest = codes
    changed = [word for kind, a, b, _, _ in rest if kind != "equal" for word in mine[a:b]]
    return (
        kind != "equal"
        and max(b, d) <= _OPENING
        and all(word.bare and "\n" not in word.written for word in (*mine[:b], *theirs[:d]))
        and sum(map(_is_small, mine[b:])) >= _FEWER
        and not any(word.bare for word in changed)
    )


def _sentences(words: Sequence[_Word], first: int, last: int) -> Sequence[_Word]:
    """The words of the sentences that have the tokens [first, last)."""
    inside = [at for at, word in enumerate(words) if word.last > first and word.first < last]
    if not inside:
        return []
    before = list(takewhile(_goes_on, words[: inside[0]][::-1]))
    after = list(takewhile(_goes_on, words[inside[-1] :]))
    return words[inside[0] - len(before) : inside[-1] + len(after) + 1]


def _content(words: Sequence[_Word]) -> set[str]:
    """The longer words."""
    return {word.bare for word in words if word.bare.isalpha() and len(word.bare) > 3}


def _telling(words: Sequence[_Word]) -> set[str]:
    """The numbers and names in some words."""
    names = {word.bare for word in words if word.written[0].isupper()}
    return names.union(*(_NUMBER.findall(_THOUSANDS.sub("", word.written)) for word in words))


def _has_digit(word: _Word) -> bool:
    return any(map(str.isdigit, word.bare))


def _alike(
    tokens: Array, documents: Array, positions: Array, before: Array
) -> list[tuple[int, int]]:
    """The positions with at least `_MIN_RUN` tokens of a text before them, and how many."""
    first = documents[documents.searchsorted(positions, side="right") - 1]
    lengths, active = np.zeros(len(positions), np.int64), np.arange(len(positions))
    for back in range(1, min(len(before), _REACH) + 1):
        active = active[positions[active] - back >= first[active]]
        active = active[tokens[positions[active] - back] == before[-back]]
        if not len(active):
            break
        lengths[active] = back
    found = lengths >= _MIN_RUN
    return list(zip(positions[found].tolist(), lengths[found].tolist(), strict=True))


class _Word(NamedTuple):
    """A word as it is compared and as it is written, its first token, and that after its last."""

    bare: str
    written: str  # with the white space after it
    first: int
    last: int


def words_in(parts: Sequence[str]) -> list[_Word]:
    """Finds the words in the texts of some tokens; signs after a word are a word of their own."""
    ends = np.cumsum([len(part) for part in parts])
    words = []
    for match in re.finditer(r"\S+\s*", "".join(parts)):
        written, begin = match[0], match.start()
        letters = [
            at
            for at, sign in enumerate(written, 1)
            if sign.isalnum() or unicodedata.combining(sign)
        ]
        size = letters[-1] if letters and written[letters[-1] :].strip() else len(written)
        for part in filter(None, (written[:size], written[size:])):
            bounds = begin, begin + len(part.rstrip()) - 1
            begin += len(part)
            first, last = np.searchsorted(ends, bounds, side="right").tolist()
            while first and not parts[first - 1]:
                first -= 1  # the first bytes of a character that several tokens make
            words.append(_Word(_bare(part), part, first, last + 1))
    return words


def _is_quoted(
    before: Sequence[_Word], after: Sequence[_Word], left: int, right: int, size: int
) -> bool:
    """Whether enough words of a difference's sentence are the same.

    Of the words before it, the nearest first, `left` are the same, and `right` of those after it.
    """
    sides = [list(takewhile(_goes_on, side)) for side in (before, after)]
    same = sides[0][:left], sides[1][:right]
    unlike = sides[0][left:], sides[1][right:]
    others = [sum(bool(word.bare) for word in side) for side in unlike]
    alike = sum(bool(word.bare) for side in same for word in side)
    small = [sum(map(_is_small, side)) for side in same]
    # A sentence may begin with names and numbers only, as with a date. Its first word is cut
    # otherwise if a line begins with it. Its last word may be the difference.
    begins = small[0] > 0 or others[0] <= 1
    closes = small[1] > 0 or len(sides[1]) <= right
    return begins and closes and sum(small) >= _WORDS and alike >= _MOSTLY * (sum(others) + size)


def _ends_sentence(word: _Word) -> bool:
    """Whether a word is a sign that ends a sentence, or the last of a paragraph."""
    ends = r"\n\s*\n" if word.bare else r"[.!?]|\n\s*\n"
    return bool(re.search(ends, word.written))


def _goes_on(word: _Word) -> bool:
    return not _ends_sentence(word)


def _is_small(word: _Word) -> bool:
    return len(word.bare) > 1 and word.bare.isalpha() and not word.written[0].isupper()


def _bare(text: str) -> str:
    """The letters and digits of a text, without case and however accents are encoded."""
    text = _THOUSANDS.sub("", unicodedata.normalize("NFKC", text).casefold())
    signs = {match.start() for match in _IN_NUMBER.finditer(text)}
    return "".join(sign for at, sign in enumerate(text) if sign.isalnum() or at in signs)
