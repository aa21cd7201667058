"""Runs a model over windows of texts: the queries, and the model's probability of each token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array, Ints
from knn_logits.corpus.documents import Document, as_documents
from knn_logits.engine.compatibility import vocabulary_size
from knn_logits.engine.forward import input_device, key_states_and_logits, windows_batch
from knn_logits.engine.keys import tokens_of_pass
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.pairs import PairTokenizer, tokenize_pairs
from knn_logits.engine.tokens import special_tokens, token_blocks
from knn_logits.engine.windows import Piece, TextWindow, batches, stream
from knn_logits.measure.pass_cache import PassCache
from knn_logits.search.neighbors import Prefixes

# Windows of similar size share a batch. They are sorted within groups of this number of batches.
_BATCHES_A_GROUP = 16
# The most scores of the model held at once, which are 256 MB of float32.
_SCORES = 64 << 20
_ROWS_AT_ONCE = 128


@dataclass(frozen=True)
class Distributions:
    """A model's distributions at some positions, of which few are computed at a time."""

    scores: Tensor  # [positions of the pass, vocabulary], any floating type
    rows: Tensor  # int64 [rows], the chosen positions of the pass, on the device of the scores

    def __getitem__(self, rows: Tensor | slice) -> Distributions:
        """Selects some of the positions."""
        index = rows if isinstance(rows, slice) else rows.to(self.rows.device)
        return Distributions(self.scores, self.rows[index])

    def log_p(self, targets: Tensor) -> Tensor:
        """The log-probability of a token in each row, float32 [rows], on the CPU."""
        chosen = [
            log_p.gather(-1, targets[rows].to(log_p.device).unsqueeze(-1))[:, 0].cpu()
            for rows, log_p in self.parts()
        ]
        return torch.cat(chosen)

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Yields slices of rows with their log-probabilities, float32 [some, vocabulary]."""
        for first in range(0, len(self.rows), _ROWS_AT_ONCE):
            part = slice(first, min(first + _ROWS_AT_ONCE, len(self.rows)))
            yield part, torch.log_softmax(self.scores[self.rows[part]].float(), dim=-1)


@dataclass(frozen=True)
class TokenScores:
    """A model's states and probabilities of some tokens of a text."""

    states: Tensor  # [rows, dim], the state before each token, which is the query of a search
    targets: Tensor  # int64 [rows], the tokens
    log_p_lm: Tensor  # float32 [rows], log p_LM of each token
    places: Ints  # int64 [rows], the position of each token in the text
    distributions: Distributions  # the model's distribution at each token
    prefixes: Prefixes  # the text that the model read before each token
    # The number of tokens that each window of the pass predicts, in order.
    lengths: tuple[int, ...] = ()

    def __getitem__(self, rows: Tensor | slice) -> TokenScores:
        """Selects some of the tokens."""
        index = rows if isinstance(rows, slice) else rows.to(self.states.device)
        positions = rows if isinstance(rows, slice) else rows.numpy()
        return TokenScores(
            self.states[index],
            self.targets[rows],
            self.log_p_lm[rows],
            self.places[positions],
            self.distributions[rows],
            self.prefixes[rows],
        )


def tokens_of_scoring_pass(model: nn.Module, batch_tokens: int | None = None) -> int:
    """As `tokens_of_pass`; None chooses no more than scores of the vocabulary fit memory."""
    tokens = tokens_of_pass(model, batch_tokens)
    fit = max(1, _SCORES // max(1, vocabulary_size(model)))
    return min(tokens, fit) if batch_tokens is None else tokens


def score_pieces(
    model: nn.Module,
    location: KeyLocation,
    pieces: Iterable[Piece],
    batch_tokens: int,
    cache: PassCache | None = None,
) -> Iterator[TokenScores]:
    """Scores every token that windows of a text predict.

    Passes of a cache have no `distributions`.
    """
    device = input_device(model)
    group: list[Piece] = []
    waiting = 0
    for piece in pieces:
        group.append(piece)
        waiting += piece.size
        if waiting >= _BATCHES_A_GROUP * batch_tokens:
            yield from _score_group(model, location, group, batch_tokens, device, cache)
            group, waiting = [], 0
    if group:
        yield from _score_group(model, location, group, batch_tokens, device, cache)


def _score_group(
    model: nn.Module,
    location: KeyLocation,
    group: list[Piece],
    batch_tokens: int,
    device: torch.device,
    cache: PassCache | None,
) -> Iterator[TokenScores]:
    tokens = np.concatenate([piece.tokens for piece in group])
    starts = np.cumsum([0, *(len(piece.tokens) for piece in group[:-1])]).tolist()
    windows = [
        TextWindow(start, piece.size, piece.skip, number, source=piece.source)
        for number, (start, piece) in enumerate(zip(starts, group, strict=True))
    ]
    for batch in batches(windows, batch_tokens):
        inputs = windows_batch(tokens, batch, device)
        path = None if cache is None else cache.path(inputs)
        kept = None if path is None else PassCache.read(path)
        pieces = [group[window.first_entry] for window in batch]
        length = max(window.size for window in batch)
        spans = [
            (window.skip + row * length, window.size + row * length)
            for row, window in enumerate(batch)
        ]
        rows = torch.cat([torch.arange(*span) for span in spans])
        targets = np.concatenate([piece.tokens[piece.skip + 1 :] for piece in pieces])
        places = [
            np.arange(piece.first + piece.skip + 1, piece.first + len(piece.tokens), dtype=np.int64)
            for piece in pieces
        ]
        counts = [last - first for first, last in spans]
        ends = [
            window.start + np.arange(window.skip + 1, window.size + 1, dtype=np.int64)
            for window in batch
        ]
        starts_of_rows = np.repeat([window.start for window in batch], counts).astype(np.int64)
        tokens_of_rows = torch.from_numpy(targets.astype(np.int64))
        if kept is None:
            states, logits = key_states_and_logits(model, location, inputs)
            distributions = Distributions(logits.flatten(0, 1), rows.to(logits.device))
            states = states.flatten(0, 1)[rows.to(states.device)]
            log_p_lm = distributions.log_p(tokens_of_rows)
            if path is not None:
                PassCache.keep(path, states, log_p_lm)
        else:
            distributions = Distributions(torch.empty(0), rows)
            states, log_p_lm = kept[0].to(device), kept[1]
        yield TokenScores(
            states,
            tokens_of_rows,
            log_p_lm,
            np.concatenate(places),
            distributions,
            Prefixes(tokens, starts_of_rows, np.concatenate(ends)),
            tuple(counts),
        )


Texts = Mapping[str, Iterable[Document | str]]


class Text:
    """Streams documents as windows, and calls `on_tokens` with a document's number and tokens."""

    def __init__(
        self,
        name: str,
        documents: Iterable[Document | str],
        tokenizer: Any,
        window: int,
        stride: int,
        concatenate: bool = False,
        pairs: PairTokenizer | None = None,
        on_tokens: Callable[[int, Array], None] | None = None,
    ) -> None:
        self.name = name
        self.tokens = 0
        self.bytes = 0  # those after a document's first token, which is not scored
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
            self.bytes += _size(document.text)
            block = np.array(ids, np.int32)
            self._on_tokens(self.documents - 1, block)
            for piece in stream([block], self._window, self._stride, first):
                yield replace(piece, source=source)

    def documents_at(self, places: Ints) -> Ints:
        """The number of the document that each token is in, int64 [rows]."""
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
        self.bytes += _size(text[len(unscored) :])


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def texts_by_name(texts: Texts | Iterable[Document | str]) -> dict[str, Iterator[Document]]:
    """Texts by name. Documents without a name become a single text named "text"."""
    by_name = texts if isinstance(texts, Mapping) else {"text": texts}
    return {str(name): as_documents(documents) for name, documents in by_name.items()}
