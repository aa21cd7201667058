"""Divides a text into two halves: one to choose settings on, and one that is held out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

import numpy as np

from knn_logits.arrays import Bools, Ints
from knn_logits.corpus.documents import Document
from knn_logits.engine.tokens import special_tokens, token_blocks
from knn_logits.measure.bench import Bench
from knn_logits.measure.overlap import OverlapCheck
from knn_logits.measure.texts import Text, Texts, named


def halved(bench: Bench, texts: Texts, check: OverlapCheck | None = None) -> tuple[Text, Halves]:
    """Reads texts as a bench does, and assigns each of their tokens to a half."""
    documents, middle = _whole_or_middle(bench, texts)
    text = bench.text("tuning", documents, None if check is None else check.add)
    return text, Halves(text, middle)


def _whole_or_middle(bench: Bench, texts: Texts) -> tuple[Iterable[Document], int | None]:
    """Returns all documents, and for a single document the number of tokens to its middle."""
    documents = chain.from_iterable(named(texts).values())
    first = list(islice(documents, 2))
    if len(first) != 1:
        return chain(first, documents), None
    only = first[0].text
    around = special_tokens(bench.tokenizer)
    return first, sum(len(block) for block in token_blocks(bench.tokenizer, only, around)) // 2


class Halves:
    """Assigns whole documents to two halves. The next document goes to the smaller half."""

    def __init__(self, text: Text, middle: int | None) -> None:
        self._text = text
        self._middle = middle
        self._seconds: list[bool] = []
        self._sizes = [0, 0]

    def second(self, places: Ints) -> Bools:
        """Tells whether each token is in the held-out half, bool [rows]."""
        if self._middle is not None:
            return np.asarray(places > self._middle)
        self._assign()
        return np.array(self._seconds)[self._text.documents_at(places)]

    def counts(self) -> tuple[int, int]:
        """Number of documents in each half."""
        held_out = sum(self._seconds)
        return (1, 1) if self._middle is not None else (len(self._seconds) - held_out, held_out)

    def held_out(self) -> tuple[int, ...]:
        """Numbers of the held-out documents; empty if the halves are parts of one document."""
        if self._middle is not None:
            return ()
        return tuple(number for number, second in enumerate(self._seconds) if second)

    def _assign(self) -> None:
        """Assigns documents to halves, as soon as the sizes of the documents before are known."""
        starts = self._text.starts
        while len(self._seconds) < len(starts):
            number = len(self._seconds)
            if number:
                self._sizes[self._seconds[-1]] += starts[number] - starts[number - 1]
            self._seconds.append(self._sizes[1] < self._sizes[0])
