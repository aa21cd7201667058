"""Compares each sentence of a text with the sentence of a passage that is most like it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate, combinations
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.engine.pieces import InnerText
from knn_logits.evidence.words import (
    Word,
    bares,
    number_of,
    numbers_and_names,
    sentences_in,
    words_in,
)
from knn_logits.search.neighbors import Neighbors
from knn_logits.store.datastore import Datastore
from knn_logits.store.spans import pairs_of, runs_before

# A neighbor is a candidate where this many tokens before it are the text's.
_MIN_RUN = 3
# The most candidates at one position, and the most tokens whose equality ranks them.
_PASSAGES, _REACH = 8, 56
# Number of the strongest voters for a word, which are candidates, too.
_VOTERS = 3
# The most sentences that one of the text is compared with, words of it, and places of two tokens.
_CANDIDATES, _MAX_WORDS, _PLACES = 8, 60, 256
# The documents are read in parts of this many tokens, each with as many around it.
_PART = 128
# In the part of a sentence that is compared, a word that differs takes away the evidence of two
# that are the same, and an end of both sentences is the evidence of five.
_AGAINST, _EDGE, _NEVER = 2, 5, 10**6
# Minimum ratio of the words that are the same to others, in a sentence that is quoted.
_MOSTLY = 3
# Minimum evidence of a quotation, in words, and number of its words that are the same and have no
# capital, since lines such as "Status: Final" are in many documents. A paraphrase needs more.
_EVIDENCE, _SMALL_WORDS, _LIKE_WORDS = 7, 2, 3
# Words that stand for a name: in its place they say nothing else.
_PRONOUNS = frozenset(("he", "she", "it", "they"))
# By place of a text: how much is the same before it, a datastore, and a position in that.
_Places = dict[int, list[tuple[int, int, int]]]
_NO_VOTES = np.empty(0, np.int64), np.empty(0)


@dataclass(frozen=True)
class Difference:
    """Words of a text in whose place a passage has others, between words that are the same."""

    first: int  # the words are the tokens [first, last) of the text,
    last: int
    store: int
    begin: int  # and those of the passage stand at [begin, end) in the datastore's tokens
    end: int
    words: str
    p_knn: float = 0.0  # of the passage's first token, by the text's neighbors


class Quotations:
    """Compares a text with its neighbors, word for word.

    Of a text that a model continued, sentences that end in its first `given` tokens are not
    compared, nor is the end of the last one if it has none. All passages are near its neighbors.
    """

    def __init__(
        self,
        stores: Sequence[Datastore],
        text: InnerText,
        without: Collection[str] = (),
        given: int = 0,
    ) -> None:
        self._stores, self._text, self._without, self.given = stores, text, without, given
        self._bounds = np.cumsum([0, *(len(store) for store in stores)])
        self._near: _Places = {}
        self._pairs: _Places | None = None
        self._votes: dict[int, tuple[Array, Array]] = {}
        self._parts: dict[tuple[int, int, int], list[_Sentence]] = {}

    def look(self, ids: Array, place: int, neighbors: Neighbors, weights: Tensor) -> None:
        """Compares the text before a token with the text before its neighbors."""
        entries, values = neighbors.ids[0].numpy(), neighbors.values[0].numpy()
        log_weights = weights[0].numpy()
        self._votes[place] = values, log_weights
        near: list[tuple[int, int, int]] = []  # without entries that have no share in the vote
        voting = (entries >= 0) & (log_weights > -np.inf)
        for number, positions in self._positions(entries[voting]):
            before = ids[max(0, place - _REACH) : place]
            alike = runs_before(self._stores[number], positions, before, _MIN_RUN)
            near += ((length, number, position) for position, length in alike)
        near.sort(key=lambda one: -one[0])
        self._near[place] = near[:_PASSAGES]
        agreeing = np.flatnonzero(voting & (values == ids[place]))
        strongest = agreeing[np.argsort(-log_weights[agreeing], kind="stable")[:_VOTERS]]
        for number, positions in self._positions(entries[strongest]):
            self._near[place] += ((1, number, position) for position in positions.tolist())

    def _positions(self, entries: Array) -> Iterator[tuple[int, Array]]:
        """The positions of entries in the tokens of their datastores, by datastore."""
        for number, store in enumerate(self._stores):
            numbers = entries - self._bounds[number]
            if len(self._stores) > 1:
                numbers = numbers[(numbers >= 0) & (numbers < len(store))]
            yield number, numbers + store.contexts.first_entry.searchsorted(numbers, side="right")

    def _p_knn(self, difference: Difference) -> float:
        values, log_weights = self._votes.get(difference.first, _NO_VOTES)
        token = self._stores[difference.store].tokens[difference.begin]
        return float(np.exp(log_weights[values == token]).sum())

    def compare(self, ids: Array) -> tuple[list[Difference], set[int], set[int]]:
        """Compares each sentence of the text with the most similar sentence of a passage.

        Returns:
            The differences, the places of the words that are the same in both sentences, and those
            of other words that no sentence has that is about the same.
        """
        found, same, elsewhere = list[Difference](), set[int](), set[int]()
        following: list[_Sentence] = []
        for mine in _pieces(words_in(self._text.parts(ids.tolist())), unfinished=self.given > 0):
            if mine.words[-1].last <= self.given:
                continue
            # An approximate search may miss the passage's next sentence.
            candidates = [*following, *self._candidates(mine, self._near)]
            is_found = any(bares(one.words) == bares(mine.words) for one in candidates)
            if not is_found and not self.given:
                candidates += self._candidates(mine, self._pairs_near(ids))
            # A model may have copied the words that it wrote, so the prompt says the subject.
            given = [word for word in mine.words if word.first < self.given]
            content = _content(given) or _content(mine.words)
            about = (
                one for one in candidates if 2 * len(content & _content(one.words)) > len(content)
            )
            known = {word.bare for one in about for word in one.words}
            fits = [_Fit(mine, one, known) for one in candidates]
            best = max((fit for fit in fits if fit.is_like), key=attrgetter("rank"), default=None)
            following = list(self._behind(best.theirs)) if best and best.is_quoted else []
            if best:
                found += (replace(one, p_knn=self._p_knn(one)) for one in best.differences())
                same |= set(best.same())
            for word in mine.words if content else ():
                # The end of a generated text may cut its last word.
                is_cut = self.given > 0 and word.last == len(ids)
                begun = is_cut and any(one.startswith(word.bare) for one in known)
                if word.bare not in known and not begun:
                    elsewhere.update(range(word.first, word.last))
        differing = {place for one in found for place in range(one.first, one.last)}
        return found, same - differing, elsewhere if self.given else elsewhere - same

    def _pairs_near(self, ids: Array) -> _Places:
        """The places of two tokens of the text in a row, which the search may miss, by place."""
        if self._pairs is None:
            self._pairs = {}
            for number, store in enumerate(self._stores):
                for place, position, weight in pairs_of(store, ids, _PLACES, self._without):
                    self._pairs.setdefault(place, []).append((weight, number, position))
        return self._pairs

    def _candidates(self, mine: _Sentence, places: _Places) -> list[_Sentence]:
        """The sentences that places near a sentence's words are in, the likest first."""
        near = Counter[tuple[int, int]]()
        for place in range(mine.words[0].first, mine.words[-1].last):
            for length, number, position in places.get(place, ()):
                near[number, position] += length
        parts = Counter[tuple[int, int]]()
        for (number, position), count in near.items():
            parts[number, position // _PART] += count
        chosen = {part for part, _ in parts.most_common(_CANDIDATES)}
        found = Counter[_Sentence]()
        for (number, position), count in near.items():
            if (number, position // _PART) in chosen:
                found[self._sentence(number, position)] += count
        return [sentence for sentence, _ in found.most_common(_CANDIDATES)]

    def _behind(self, sentence: _Sentence) -> Iterator[_Sentence]:
        """The next sentence of the document, if there is one."""
        end, documents = sentence.words[-1].last, self._stores[sentence.store].documents
        if documents.at_token(end) == documents.at_token(end - 1):
            yield self._sentence(sentence.store, end)

    def _sentence(self, number: int, position: int) -> _Sentence:
        """The sentence of a document that has a token, or begins behind it."""
        documents = self._stores[number].documents
        document, part = int(documents.at_token(position)), position // _PART
        if (number, document, part) not in self._parts:
            first, length = documents[document].first, documents[document].length
            begin, end = max(first, (part - 1) * _PART), min(first + length, (part + 2) * _PART)
            tokens = self._stores[number].tokens[begin:end].tolist()
            cut = sentences_in(words_in(self._text.parts(tokens), begin))
            whole = begin == first, end == first + length
            self._parts[number, document, part] = [
                _Sentence(words, whole[0] or at > 0, whole[1] or at < len(cut) - 1, number)
                for at, words in enumerate(cut)
            ]
        sentences = self._parts[number, document, part]
        behind = (one for one in sentences if one.words[-1].last > position)
        return next(behind, sentences[-1])


class _Sentence(NamedTuple):
    """Words of a sentence, and whether they are its first and its last."""

    words: tuple[Word, ...]
    opens: bool
    closes: bool
    store: int = -1


class _Block(NamedTuple):
    """Words of a text and of a passage in their place, which are the same or not."""

    same: bool
    mine: Sequence[Word]
    theirs: Sequence[Word]

    @property
    def size(self) -> int:
        """The number of words. Another name counts as one."""
        return max(number_of(words, names=not self.same) for words in (self.mine, self.theirs))


class _Fit:
    """A sentence of a text beside one of a passage, and the part where most words are the same."""

    def __init__(self, mine: _Sentence, theirs: _Sentence, known: set[str]) -> None:
        self._mine, self.theirs, self._known = mine, theirs, known
        self._blocks = blocks = _blocks(mine.words, theirs.words)
        sums = [0, *accumulate(map(self._worth, range(len(blocks))))]
        spans = combinations(range(len(sums)), 2)
        score, first, end = max((sums[end] - sums[first], first, end) for first, end in spans)
        self._part, inside = range(first, end), blocks[first:end]
        outside = [*blocks[:first], *blocks[end:]]
        around = sum(number_of(block.mine) for block in outside)
        others = min(around, sum(number_of(block.theirs) for block in outside))
        others += sum(block.size for block in inside if not block.same)
        same = sum(block.size for block in inside if block.same)
        words = _content([word for block in inside if block.same for word in block.mine])
        enough = words and _small(inside) >= _SMALL_WORDS and score >= _EVIDENCE
        self.is_quoted = bool(enough) and same >= _MOSTLY * others
        # Words at an end differ only if all others are compared.
        self._whole = range(bool(around), len(blocks) - bool(around))
        alike = [word for block in blocks if block.same for word in block.mine]
        enough = min(len(_content(alike)), _small(blocks)) >= _LIKE_WORDS
        self._is_mostly = enough and 2 * len(alike) > min(len(mine.words), len(theirs.words))
        whole = same > 0 == sum(block.size for block in blocks if not block.same)
        self.is_like = self.is_quoted or whole or any(map(self._names_another, range(len(blocks))))
        self.rank = self.is_quoted or whole, score

    def same(self) -> Iterator[int]:
        """The places of the text whose words the passage has, too."""
        for number, block in enumerate(self._blocks):
            if block.same and (number in self._part or not self.is_quoted):
                yield from range(block.mine[0].first, block.mine[-1].last)

    def differences(self) -> Iterator[Difference]:
        """The words in whose place the passage has others."""
        for number, (same, mine, theirs) in enumerate(self._blocks):
            same = same or "".join(bares(mine)) == "".join(bares(theirs))
            both = [set(filter(None, bares(one))) for one in (mine, theirs)]
            same = same or (all(both) and any(map(_PRONOUNS.issuperset, both)))
            quoted = self.is_quoted and number in self._part and number in self._whole
            if same or not (quoted or self._names_another(number)):
                continue
            # Where words were left out or put in, the word beside them stands on both sides.
            if not (mine and theirs):
                ours, others = next(self._beside(number))
                mine = sorted((*mine, ours), key=attrgetter("first"))
                theirs = sorted((*theirs, others), key=attrgetter("first"))
            span = theirs[0].first, theirs[-1].last
            words = "".join(word.written for word in mine)
            yield Difference(mine[0].first, mine[-1].last, self.theirs.store, *span, words)

    def _beside(self, number: int) -> Iterator[tuple[Word, Word]]:
        """The words behind a block, or before it if only a sign is behind it."""
        _, mine, theirs = self._blocks[min(number + 1, len(self._blocks) - 1)]
        if number and not (mine and mine[0].bare):
            _, mine, theirs = self._blocks[number - 1]
            mine, theirs = mine[::-1], theirs[::-1]
        return zip(mine, theirs, strict=False)

    def _worth(self, number: int) -> int:
        """The evidence of a block for a quotation, in words."""
        block, last = self._blocks[number], len(self._blocks) - 1
        if block.same:
            return block.size
        if 0 < number < last:
            return -_AGAINST * block.size
        both, words = (self._mine, self.theirs), (*block.mine, *block.theirs)
        ends = all(one.closes if number else one.opens for one in both)
        heading = not number and any("\n" in word.written for word in words)
        whole = not heading and all(word.bare or word.ends_sentence for word in words)
        return _EDGE - _AGAINST * block.size if ends and whole else -_NEVER

    def _names_another(self, number: int) -> bool:
        """Whether the passage has another number or name, in a sentence that is not quoted."""
        if not self._is_mostly or number in (0, len(self._blocks) - 1):
            return False
        _, mine, theirs = self._blocks[number]
        ours = numbers_and_names([word for word in mine if word.bare not in self._known])
        ours -= numbers_and_names(self.theirs.words)
        others = numbers_and_names(theirs) - numbers_and_names(self._mine.words)
        kinds = {one[0].isdigit() for one in ours} & {one[0].isdigit() for one in others}
        beside = len(self._blocks[number - 1].mine) + len(self._blocks[number + 1].mine)
        return bool(kinds) and beside >= _LIKE_WORDS


def _blocks(mine: Sequence[Word], theirs: Sequence[Word]) -> list[_Block]:
    """Aligns two sentences.

    Blocks of words that differ and of words that are the same take turns. The first and the last
    differ, and may be empty.
    """
    matcher = SequenceMatcher(None, bares(mine), bares(theirs), autojunk=False)
    blocks, a, c = list[_Block](), 0, 0
    for b, d, size in matcher.get_matching_blocks():
        blocks.append(_Block(False, mine[a:b], theirs[c:d]))
        a, c = b + size, d + size
        blocks.append(_Block(True, mine[b:a], theirs[d:c]))
    return blocks[:-1]


def _pieces(words: Sequence[Word], *, unfinished: bool) -> Iterator[_Sentence]:
    """The sentences of a text, which may end in the midst of one. Long ones are cut."""
    for sentence in sentences_in(words):
        ends = not unfinished or sentence[-1].ends_sentence
        for first in range(0, len(sentence), _MAX_WORDS):
            part = sentence[first : first + _MAX_WORDS]
            yield _Sentence(part, not first, ends and first + len(part) == len(sentence))


def _small(blocks: Sequence[_Block]) -> int:
    """The number of words that are the same, without a capital in one of the sentences."""
    pairs = (zip(one.mine, one.theirs, strict=True) for one in blocks if one.same)
    return sum(any(word.is_small for word in pair) for block in pairs for pair in block)


def _content(words: Sequence[Word]) -> set[str]:
    """The longer words."""
    return {word.bare for word in words if word.bare.isalpha() and len(word.bare) > 3}
