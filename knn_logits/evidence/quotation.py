"""Finds where a text says something else than a passage that it otherwise quotes word for word."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.pieces import LONGEST_WORD, REST_OF_WORD, InnerText
from knn_logits.search.neighbors import Neighbors
from knn_logits.store.datastore import Datastore

# A passage is compared with the text where this many tokens are the same.
_MIN_SHARED = 6
# The text and the passage must agree again within this many tokens, for at least three tokens or up
# to an end of the text.
_FURTHEST, _AGAIN = 8, 3
# The most passages that are compared at one position, and the most tokens on each side.
_PASSAGES, _REACH = 8, 48
# Minimum number of words that are the same around a difference. Capitalized words do not count,
# since lines such as "Status: Final" are the same in many documents.
_WORDS = 4
# Minimum ratio of the words that are the same, in the sentence around a difference, to its others.
# A paraphrase has a few words in a row with its passage, too.
_MOSTLY = 2
# A sign between two digits tells numbers apart, but for one that groups thousands.
_THOUSANDS, _IN_NUMBER = re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), re.compile(r"(?<=\d)[.,:](?=\d)")
# A sentence ends here, for the purpose of telling what belongs to the one around a difference.
_SENTENCE = re.compile(r"[.!?]+[\s\"'”»)]+|\n\s*\n")


@dataclass(frozen=True)
class Difference:
    """Words of a text in whose place a passage has others, between words that are the same."""

    first: int  # the words are the tokens [first, last) of the text,
    last: int
    store: int
    begin: int  # and those of the passage stand at [begin, end) in the datastore's tokens
    end: int
    before: int  # number of tokens before and after them that are the same
    after: int
    ends: bool  # whether the text ends with these

    @property
    def same(self) -> int:
        """Number of tokens that are the same."""
        return self.before + self.after


class _Match(NamedTuple):
    """A passage whose tokens before a position are those of the text."""

    store: int
    position: int
    length: int


class Quotations:
    """Compares a text with its neighbors, word for word."""

    def __init__(self, stores: Sequence[Datastore]) -> None:
        self._stores = stores
        self._bounds = np.cumsum([0, *(len(store) for store in stores)])
        self._matches: dict[int, list[_Match]] = {}
        self._supported: set[int] = set()
        self._compared: set[int] = set()  # places of tokens that some passage has in a row
        # Passages whose words are those of the text up to the next place, by that place.
        self._going_on: dict[int, set[tuple[int, int]]] = {}
        self._votes: dict[int, tuple[Array, Array]] = {}

    def look(self, ids: Array, place: int, neighbors: Neighbors, weights: Tensor) -> None:
        """Compares the text before a token with the text before its neighbors."""
        entries, values = neighbors.ids[0].numpy(), neighbors.values[0].numpy()
        self._votes[place] = values, weights[0].numpy()
        # Entries without a share in the vote do not count, as in a datastore of weight 0.
        voting = (entries >= 0) & (weights[0].numpy() > -np.inf)
        if neighbors.shared is not None:
            # The search has counted up to more than these.
            voting &= neighbors.shared[0].numpy() >= _MIN_SHARED
        entries = entries[voting]
        matches: list[_Match] = []
        for number, store in enumerate(self._stores):
            numbers = entries - self._bounds[number]
            if len(self._stores) > 1:
                numbers = numbers[(numbers >= 0) & (numbers < len(store))]
            positions = numbers + store.contexts.first_entry.searchsorted(numbers, side="right")
            matches += (
                _Match(number, position, length)
                for position, length in _alike(
                    np.asarray(store.tokens), store.documents.first, positions, ids[:place]
                )
            )
        on = {(match.store, match.position) for match in matches} | self._going_on.pop(place, set())
        same = [
            match for match in sorted(on) if self._stores[match[0]].tokens[match[1]] == ids[place]
        ]
        if same:
            self._supported.add(place)
            # An approximate search may miss them at the next place.
            self._going_on[place + 1] = {
                (number, position + 1)
                for number, position in same[:_PASSAGES]
                if position + 1 < self._document(_Match(number, position, 0))[2]
            }
        if matches:
            matches.sort(key=lambda match: -match.length)
            self._compared.update(range(place - matches[0].length, place))
            self._matches[place] = matches[:_PASSAGES]

    def verbatim(self, differences: Sequence[Difference]) -> set[int]:
        """The places whose token a passage has, too, after the same six tokens or among them."""
        differing = {place for gap in differences for place in range(gap.first, gap.last)}
        return self._supported | (self._compared - differing)

    def p_knn(self, place: int, token: int) -> float:
        """The probability of a token by the neighbors at a place of the text."""
        values, log_weights = self._votes.get(place, (np.empty(0, np.int64), np.empty(0)))
        return float(np.exp(log_weights[values == token]).sum())

    def differences(self, ids: Array, text: InnerText) -> list[Difference]:
        """Finds the differences from the passages that the text quotes, in the text's order."""
        candidates = [gap for gap in self._candidates(ids, text) if _is_prose(gap, ids, text)]
        chosen: list[Difference] = []
        for gap in sorted(candidates, key=lambda gap: -gap.same):
            whole = self._whole_words(gap, ids, text)
            if all(whole.last <= other.first or whole.first >= other.last for other in chosen):
                chosen.append(whole)
        parts = [part for gap in chosen for part in self._parts(gap, ids, text)]
        return sorted(parts, key=lambda gap: gap.first)

    def _candidates(self, ids: Array, text: InnerText) -> list[Difference]:
        differences: list[Difference | None] = []
        compared = set()
        for place, matches in self._matches.items():
            longest = matches[0].length
            for match in matches:
                differences += self._all_after(ids, place, match)
                start = (match.store, place - match.length, match.position - match.length)
                if match.length == longest < min(place, _REACH) and start not in compared:
                    compared.add(start)
                    differences.append(self._before(ids, place, match, text))
        return [gap for gap in differences if gap is not None]

    def _all_after(self, ids: Array, place: int, match: _Match) -> list[Difference]:
        """Finds the differences from a passage in a row, as long as the text follows it."""
        differences: list[Difference] = []
        _, _, end = self._document(match)
        while place < len(ids) and match.position < end and place not in self._supported:
            gap = self._after(ids, place, match)
            if gap is None:
                break
            differences.append(gap)
            if gap.after >= _REACH:
                break
            place = gap.last + gap.after
            match = _Match(match.store, gap.end + gap.after, gap.same)
        return differences

    def _after(self, ids: Array, place: int, match: _Match) -> Difference | None:
        """Looks for the place where the text and the passage agree again after a difference."""
        tokens, _, end = self._document(match)
        rest = ids[place : place + _FURTHEST + _REACH]
        passage = tokens[match.position : min(end, match.position + _FURTHEST + _REACH)]
        again = _again(rest, passage, place + len(rest) == len(ids))
        if again is None:
            return None
        skipped, replaced, after = again
        ends = place + skipped + after == len(ids)
        begin = match.position
        return Difference(
            place, place + skipped, match.store, begin, begin + replaced, match.length, after, ends
        )

    def _before(self, ids: Array, place: int, match: _Match, text: InnerText) -> Difference | None:
        """Looks for the place where the text and the passage agreed before a difference."""
        tokens, first, end = self._document(match)
        last, begin = place - match.length, match.position - match.length
        # Another passage may have the words of the text before this one.
        later = (
            self._matches.get(matches) for matches in range(last + _MIN_SHARED, place + _REACH)
        )
        reach = (
            _MIN_SHARED + number - matches[0].length
            for number, matches in enumerate(later)
            if matches
        )
        if min(reach, default=0) < 0:
            return None
        low = max(0, last - _FURTHEST - _REACH)
        passage = tokens[max(first, begin - _FURTHEST - _REACH) : begin]
        if low == 0 and _bare(text(passage)).endswith(_bare(text(ids[:last]))):
            return None  # a text's first word is cut otherwise, since no space is before it
        if low == 0 and (opening := _bare(text(ids[:1]))):
            passage = passage.copy()
            alike = [token for token in set(passage.tolist()) if _bare(text([token])) == opening]
            passage[np.isin(passage, alike)] = ids[0]
        again = _again(ids[low:last][::-1], passage[::-1], low == 0)
        if again is None:
            return None
        skipped, replaced, before = again
        after = match.length + _run(ids[place:], tokens[match.position : end])
        ends = last + after == len(ids)
        return Difference(
            last - skipped, last, match.store, begin - replaced, begin, before, after, ends
        )

    def _document(self, match: _Match) -> tuple[Array, int, int]:
        """A datastore's tokens, and the first and last bound of a match's document."""
        store = self._stores[match.store]
        document = store.documents[store.documents.at_token(match.position)]
        return np.asarray(store.tokens), document.first, document.first + document.length

    def _whole_words(self, gap: Difference, ids: Array, text: InnerText) -> Difference:
        """Widens a difference to whole words, on both sides by the same tokens."""
        while gap.before and not text(ids[gap.first : gap.first + 1])[:1].isspace():
            if text(ids[gap.first - 1 : gap.first])[-1:].isspace():
                break
            gap = replace(gap, first=gap.first - 1, begin=gap.begin - 1, before=gap.before - 1)
        # If words were left out or put in, the next word stands on both sides.
        if gap.after and (gap.first == gap.last or gap.begin == gap.end):
            gap = replace(gap, last=gap.last + 1, end=gap.end + 1, after=gap.after - 1)
        rest = REST_OF_WORD.match(text(ids[gap.last : gap.last + LONGEST_WORD]))
        left = len(rest[0]) if rest else 0
        while gap.after and left > 0:
            left -= len(text(ids[gap.last : gap.last + 1]))
            gap = replace(gap, last=gap.last + 1, end=gap.end + 1, after=gap.after - 1)
        return gap

    def _parts(self, gap: Difference, ids: Array, text: InnerText) -> list[Difference]:
        """Divides a difference of several words where both sides have the same word."""
        passage = self._stores[gap.store].tokens[gap.begin : gap.end].tolist()
        mine = words_in(text.parts(ids[gap.first : gap.last]))
        theirs = words_in(text.parts(passage))
        parts = []
        matcher = SequenceMatcher(None, [w.bare for w in mine], [w.bare for w in theirs], False)
        for kind, a, b, c, d in matcher.get_opcodes():
            same = "".join(w.bare for w in mine[a:b]) == "".join(w.bare for w in theirs[c:d])
            if kind == "equal" or same:
                continue
            if a == b or c == d:
                # Words were left out or put in: the word beside them stands on both sides.
                a, b, c, d = (a, b + 1, c, d + 1) if b < len(mine) else (a - 1, b, c - 1, d)
            ours, rival = mine[max(a, 0) : b], theirs[max(c, 0) : d]
            if ours and rival:
                first, last = gap.first + ours[0].first, gap.first + ours[-1].last
                begin, end = gap.begin + rival[0].first, gap.begin + rival[-1].last
                parts.append(replace(gap, first=first, last=last, begin=begin, end=end))
        return parts


def _alike(
    tokens: Array, documents: Array, positions: Array, before: Array
) -> list[tuple[int, int]]:
    """The positions with at least `_MIN_SHARED` tokens of a text before them, and how many."""
    if len(before) < _MIN_SHARED:
        return []
    positions = positions[positions >= _MIN_SHARED]
    # Most neighbors have another token before them, and need no closer look.
    for back in range(1, _MIN_SHARED + 1):
        positions = positions[tokens[positions - back] == before[-back]]
        if not len(positions):
            return []
    first = documents[documents.searchsorted(positions, side="right") - 1]
    inside = positions - _MIN_SHARED >= first
    positions, first = positions[inside], first[inside]
    lengths, active = np.full(len(positions), _MIN_SHARED), np.arange(len(positions))
    for back in range(_MIN_SHARED + 1, min(len(before), _REACH) + 1):
        active = active[positions[active] - back >= first[active]]
        active = active[tokens[positions[active] - back] == before[-back]]
        if not len(active):
            break
        lengths[active] = back
    return list(zip(positions.tolist(), lengths.tolist(), strict=True))


class _Word(NamedTuple):
    """A word as it is compared, its first token, and the place after its last one."""

    bare: str
    first: int
    last: int


def words_in(parts: Sequence[str]) -> list[_Word]:
    """Finds the words, which white space separates, in the texts of some tokens."""
    ends = np.cumsum([len(part) for part in parts])
    words = []
    for match in re.finditer(r"\S+", "".join(parts)):
        first, last = np.searchsorted(ends, [match.start(), match.end() - 1], side="right").tolist()
        while first and not parts[first - 1]:
            first -= 1  # the first bytes of a character that several tokens make
        words.append(_Word(_bare(match[0]), first, last + 1))
    return words


def _run(text: Array, passage: Array) -> int:
    """Counts the tokens at the beginning of two texts that are the same, at most `_REACH`."""
    size = min(len(text), len(passage), _REACH)
    differ = np.flatnonzero(text[:size] != passage[:size])
    return int(differ[0]) if len(differ) else size


def _again(text: Array, passage: Array, whole: bool) -> tuple[int, int, int] | None:
    """Finds where two texts that begin differently become the same."""
    ours, theirs = text[: _FURTHEST + 1].tolist(), passage[: _FURTHEST + 1].tolist()
    for total in range(1, 2 * _FURTHEST + 1):
        for skipped in range(max(0, total - _FURTHEST), min(_FURTHEST, total) + 1):
            if ours[skipped : skipped + 1] != theirs[total - skipped : total - skipped + 1]:
                continue
            same = _run(text[skipped:], passage[total - skipped :])
            if same >= _AGAIN or (same and whole and skipped + same == len(text)):
                return skipped, total - skipped, same
    return None


def _is_prose(gap: Difference, ids: Array, text: InnerText) -> bool:
    """Whether enough words around a difference are the same, in the same paragraph."""
    sides = (
        text(ids[gap.first - gap.before : gap.first]),
        text(ids[gap.last : gap.last + gap.after]),
    )
    before, after = re.split(r"\n\s*\n", sides[0])[-1], re.split(r"\n\s*\n", sides[1])[0]
    left, right = _words(before), _words(after)
    if len(_every_word(before + " " + after)) < _MOSTLY * _unlike(gap, ids, text, *sides):
        return False
    # A sentence may begin with names and numbers only, as with a date. Its first word is cut
    # otherwise if a line begins with it.
    opens = len(_every_word(_opening(gap, ids, text, sides[0]))) <= 1
    return left + right >= _WORDS and (left > 0 or opens) and (right > 0 or gap.ends)


def _unlike(gap: Difference, ids: Array, text: InnerText, before: str, after: str) -> int:
    """Counts the words of the sentence around a difference that the passage does not have."""
    last = gap.last + gap.after
    count = len(_every_word(_opening(gap, ids, text, before)))
    if gap.after < _REACH and not _SENTENCE.search(after + " "):
        count += len(_every_word(_SENTENCE.split(text(ids[last : last + _REACH]))[0]))
    return count


def _opening(gap: Difference, ids: Array, text: InnerText, before: str) -> str:
    """The beginning of the sentence around a difference, as far as the passage does not have it."""
    # The words beyond the compared tokens are not known to be unlike.
    if gap.before >= _REACH or _SENTENCE.search(before):
        return ""
    first = gap.first - gap.before
    return _SENTENCE.split(text(ids[max(0, first - _REACH) : first]))[-1]


def _every_word(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _words(text: str) -> int:
    words = re.findall(r"[^\W\d_]{2,}", text)
    return sum(not word[0].isupper() for word in words)


def _bare(text: str) -> str:
    """The letters and digits of a text, without case and however accents are encoded."""
    text = _THOUSANDS.sub("", unicodedata.normalize("NFKC", text).casefold())
    signs = {match.start() for match in _IN_NUMBER.finditer(text)}
    return "".join(sign for at, sign in enumerate(text) if sign.isalnum() or at in signs)
