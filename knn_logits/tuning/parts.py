"""A text in two halves: one to choose on, one that had no say."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

import numpy as np

from knn_logits.arrays import Bools, Ints
from knn_logits.corpus.documents import Document
from knn_logits.evaluation.bench import Bench
from knn_logits.evaluation.texts import Text, Texts, named
from knn_logits.text.tokens import special_tokens, token_blocks


def whole_or_middle(bench: Bench, texts: Texts) -> tuple[Iterable[Document], int | None]:
    """All documents; for a single one, where its middle is, in tokens."""
    documents = chain.from_iterable(named(texts).values())
    first = list(islice(documents, 2))
    if len(first) != 1:
        return chain(first, documents), None
    only = first[0].text
    around = special_tokens(bench.tokenizer)
    return first, sum(len(one) for one in token_blocks(bench.tokenizer, only, around)) // 2


class Halves:
    """Which half of a text each token belongs to: whole documents, the smaller half next."""

    def __init__(self, text: Text, middle: int | None) -> None:
        self._text = text
        self._middle = middle
        self._seconds: list[bool] = []
        self._sizes = [0, 0]

    def second(self, places: Ints) -> Bools:
        """bool [rows], whether each token is in the half that is held out."""
        if self._middle is not None:
            return np.asarray(places > self._middle)
        self._assign()
        return np.array(self._seconds)[self._text.documents_at(places)]

    def counts(self) -> tuple[int, int]:
        """Documents in each half."""
        held_out = sum(self._seconds)
        return (1, 1) if self._middle is not None else (len(self._seconds) - held_out, held_out)

    def held_out(self) -> tuple[int, ...]:
        """Numbers of the documents in the second half; empty where it is part of one."""
        if self._middle is not None:
            return ()
        return tuple(number for number, second in enumerate(self._seconds) if second)

    def _assign(self) -> None:
        """A document's half follows from the sizes of those before it, which are known."""
        starts = self._text.starts
        while len(self._seconds) < len(starts):
            number = len(self._seconds)
            if number:
                self._sizes[self._seconds[-1]] += starts[number] - starts[number - 1]
            self._seconds.append(self._sizes[1] < self._sizes[0])
