"""Cuts documents of any length into tokens with the model's tokenizer."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from knn_logits.arrays import Array
from knn_logits.corpus.documents import Document
from knn_logits.engine.cutting import cut_texts, text_ids
from knn_logits.engine.pairs import PairTokenizer
from knn_logits.errors import CorpusError

# A tokenizer needs several times a text's size in memory, so a huge text is cut in parts.
_PART = 1 << 20
_BLOCK = 1 << 17
_PARTS_AT_ONCE = 64
_PAIRS_AT_ONCE = 1024
_CHARACTERS_AT_ONCE = 4 << 20
# A tokenizer for one script or one kind of text may drop all other text.
_PROBES = ("a", "A", "1", ".", "я", "中", "क")
_TOKENS_TRIED = 64
_BREAK = re.compile(r"\n(?=\S)")


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Finds the tokens that a tokenizer puts before and after every text."""
    for probe in _probes(tokenizer):
        plain = tokenizer(probe, add_special_tokens=False)["input_ids"]
        whole = tokenizer(probe, add_special_tokens=True)["input_ids"]
        # The tokenizer drops this text, so it has no position among the tokens.
        for start in range(len(whole) - len(plain) + 1 if plain else 0):
            if whole[start : start + len(plain)] == plain:
                return list(whole[:start]), list(whole[start + len(plain) :])
    return [], []


def special_ids(tokenizer: Any) -> set[int]:
    """Returns the tokens of a tokenizer's own, such as the one that ends a text."""
    return set(getattr(tokenizer, "all_special_ids", ()))


def _probes(tokenizer: Any) -> Iterator[str]:
    """Yields short texts to try with the tokenizer. The last are the texts of its own tokens."""
    yield from _PROBES
    special = special_ids(tokenizer)
    ordinary = (one for one in range(len(tokenizer)) if one not in special)
    yield from (str(tokenizer.decode([one])) for one in islice(ordinary, _TOKENS_TRIED))


def _parts(text: str, size: int | None = None) -> Iterator[str]:
    start, size = 0, size or _PART
    while len(text) - start > size:
        found = _BREAK.search(text, start + size)
        if found is None:
            break
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


def tokenize(tokenizer: Any, documents: Iterable[Document]) -> Iterator[tuple[Document, list[int]]]:
    """Cuts documents into tokens, with the special tokens that the tokenizer puts around a text.

    A document of more than a million characters is split at the end of a line before that.

    Args:
        tokenizer: A tokenizer of transformers.
        documents: The documents, in order.

    Yields:
        Each document and its token ids.
    """
    for document, ids, _ in tokenize_with_places(tokenizer, documents):
        yield document, ids


def tokenize_with_places(
    tokenizer: Any, documents: Iterable[Document]
) -> Iterator[tuple[Document, list[int], list[int]]]:
    """Cuts documents as `tokenize` does, and finds the places of their text among the tokens.

    Args:
        tokenizer: A tokenizer of transformers.
        documents: The documents, in order.

    Yields:
        Each document, its token ids, and the number of the first token at each of its places. The
        numbers are missing if the tokenizer does not tell the positions of its tokens.
    """
    before, after = special_tokens(tokenizer)
    for group in _groups(documents):
        texts = [part for document, parts in group for part in parts]
        cut: list[list[int]] = []
        ends: list[Array | None] = []
        placed = [bool(document.places) for document, parts in group for _ in parts]
        for first in range(0, len(texts), _PARTS_AT_ONCE):
            last = first + _PARTS_AT_ONCE
            some, where = cut_texts(
                tokenizer, texts[first:last], around=False, ends=any(placed[first:last])
            )
            cut, ends = cut + some, ends + where
        at = 0
        for document, parts in group:
            span = slice(at, at + len(parts))
            at += len(parts)
            ids = [one for part in cut[span] for one in part]
            places = [len(before) + one for one in _places(document, parts, ends[span])]
            yield document, [*before, *ids, *after], places


def _places(
    document: Document, parts: Sequence[str], ends: Sequence[Array | None]
) -> Iterator[int]:
    first = token = 0
    waiting = deque(document.places)
    for part, known in zip(parts, ends, strict=True):
        if known is None:
            return
        while waiting and waiting[0].start < first + len(part):
            here = waiting.popleft().start - first
            yield token + int(np.searchsorted(known, here, side="right"))
        first, token = first + len(part), token + len(known)


def tokenize_pairs(
    pairs: PairTokenizer, documents: Iterable[Document]
) -> Iterator[tuple[Document, list[int]]]:
    """Cuts the targets of pairs into the decoder's text.

    Args:
        pairs: The model's tokenizer.
        documents: The documents in order, each with its source.

    Yields:
        Each document and the token ids of its target, from the start token on.

    Raises:
        CorpusError: when a document has no source.
    """
    waiting = iter(documents)
    while group := list(islice(waiting, _PAIRS_AT_ONCE)):
        for document in group:
            if document.source is None:
                raise CorpusError(
                    f"the document {document.id} has no source: give an encoder-decoder model "
                    'pairs, which are rows with "source" and "target"'
                )
        yield from zip(group, pairs.targets([one.text for one in group]), strict=True)


def token_blocks(tokenizer: Any, text: str, around: tuple[list[int], list[int]]) -> Iterator[Array]:
    """Yields the tokens of one document part by part. Parts are cut at the ends of lines.

    Memory holds only one part, however long the document is.

    Args:
        tokenizer: A tokenizer of transformers.
        text: The document's text.
        around: The result of `special_tokens`.

    Yields:
        The tokens of a part, int32 [tokens].
    """
    before, after = around
    if before:
        yield np.array(before, np.int32)
    for part in _parts(text, _BLOCK):
        yield np.array(text_ids(tokenizer, part, around=False), np.int32)
    if after:
        yield np.array(after, np.int32)


def _groups(documents: Iterable[Document]) -> Iterator[list[tuple[Document, list[str]]]]:
    group: list[tuple[Document, list[str]]] = []
    size = 0
    for document in documents:
        parts = list(_parts(document.text))
        group.append((document, parts))
        size += len(document.text)
        if len(group) >= _PARTS_AT_ONCE or size >= _CHARACTERS_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group
