"""Reads a text to be scored: cuts its documents into windows of tokens, and counts what it read.

This module knows tokenizers and windows, but no model and no datastore.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from knn_logits.arrays import Array, Ints
from knn_logits.corpus.documents import Document, as_documents
from knn_logits.engine.pairs import PairTokenizer, tokenize_pairs
from knn_logits.engine.tokens import special_tokens, token_blocks
from knn_logits.engine.windows import Piece, stream

Texts = Mapping[str, Iterable[Document | str]]

_WORD = re.compile(r"\S+")
_CHARACTERS = 1 << 20


class Text:
    """Streams documents as windows, and calls `on_tokens` with a document's number and tokens."""

    def __init__(
        self,
        name: str,
        documents: Iterable[Document | str],
        tokenizer: Any,
        window: int,
        stride: int,
        *,
        concatenate: bool = False,
        pairs: PairTokenizer | None = None,
        on_tokens: Callable[[int, Array], None] | None = None,
    ) -> None:
        self.name = name
        self.tokens = 0
        # Words and bytes after a document's first token, which is not scored.
        self.words = self.bytes = 0
        self.starts: list[int] = []  # the first token of each document
        self._documents = documents
        self._tokenizer = tokenizer
        self._around = special_tokens(tokenizer)
        self._window, self._stride = window, stride
        self._concatenate = concatenate
        self._pairs = pairs
        self._on_tokens = on_tokens or (lambda *_: None)

    @property
    def documents(self) -> int:
        """Number of documents read so far."""
        return len(self.starts)

    def pieces(self) -> Iterator[Piece]:
        """Yields the windows of all documents in order. Those of pairs include their sources."""
        if self._pairs is not None:
            yield from self._pieces_of_pairs(self._pairs)
            return
        if self._concatenate:
            blocks = chain.from_iterable(self._blocks(document) for document in self._documents)
            yield from stream(blocks, self._window, self._stride)
            return
        for document in self._documents:
            yield from stream(self._blocks(document), self._window, self._stride, self.tokens)

    def _pieces_of_pairs(self, pairs: PairTokenizer) -> Iterator[Piece]:
        for document, ids in tokenize_pairs(pairs, as_documents(self._documents)):
            assert document.source is not None
            (source,) = pairs.sources([document.source])
            first = self.tokens
            self.starts.append(first)
            self.tokens += len(ids)
            self._count(document.text, 0)
            block = np.array(ids, np.int32)
            self._on_tokens(self.documents - 1, block)
            for piece in stream([block], self._window, self._stride, first):
                yield replace(piece, source=source)

    def documents_at(self, places: Ints) -> Ints:
        """Returns the number of the document that each token is in, int64 [rows]."""
        return np.searchsorted(np.array(self.starts), places, side="right") - 1

    def _blocks(self, document: Document | str) -> Iterator[Array]:
        text = document if isinstance(document, str) else document.text
        scored = self._concatenate and self.tokens > 0
        self.starts.append(self.tokens)
        unscored = ""
        for number, block in enumerate(token_blocks(self._tokenizer, text, self._around)):
            if number == 0 and len(block) and not scored:
                unscored = self._tokenizer.decode(block[:1], skip_special_tokens=True)
            self.tokens += len(block)
            self._on_tokens(self.documents - 1, block)
            yield block
        self._count(text, len(unscored))

    def _count(self, text: str, first: int) -> None:
        self.words += sum(1 for _ in _WORD.finditer(text, first))
        self.bytes += sum(
            len(text[start : start + _CHARACTERS].encode("utf-8", "surrogatepass"))
            for start in range(first, len(text), _CHARACTERS)
        )


def named(texts: Texts | Iterable[Document | str]) -> dict[str, Iterator[Document]]:
    """Returns texts by name. Documents without a name become a single text named "text"."""
    by_name = texts if isinstance(texts, Mapping) else {"text": texts}
    return {str(name): as_documents(documents) for name, documents in by_name.items()}
