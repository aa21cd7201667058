"""Runs a model over windows of texts: the queries, and the model's probability of each token."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from knn_logits.arrays import Array, Ints
from knn_logits.corpus.documents import Document, as_documents
from knn_logits.engine.compatibility import model_record, vocabulary_size
from knn_logits.engine.forward import input_device, key_states_and_logits
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.pairs import PairTokenizer, tokenize_pairs
from knn_logits.engine.tokens import special_tokens, token_blocks
from knn_logits.engine.windows import (
    Piece,
    TextWindow,
    batches,
    stream,
    tokens_of_pass,
    windows_batch,
)
from knn_logits.search.neighbors import Prefixes
from knn_logits.store.files import replacing

# Windows of similar size share a batch. They are sorted within groups of this number of batches.
_BATCHES_A_GROUP = 16
# The most scores of the model held at once, which are 256 MB of float32.
_SCORES = 64 << 20
_ROWS_AT_ONCE = 128
# Number of scores that fit a CPU core's cache: log-softmax of them takes half of the time.
_CACHED_SCORES = 1 << 18


@dataclass(frozen=True)
class Distributions:
    """A model's distributions at some positions, of which few are computed at a time."""

    scores: Tensor  # [positions of the pass, vocabulary], any floating type
    rows: Tensor  # int64 [rows], the chosen positions of the pass, on the device of the scores

    def __getitem__(self, rows: Tensor | slice) -> Distributions:
        index = rows if isinstance(rows, slice) else rows.to(self.rows.device)
        return Distributions(self.scores, self.rows[index])

    def log_p(self, targets: Tensor) -> Tensor:
        """The log-probability of a token in each row, float32 [rows], on the CPU."""
        on_cpu = self.scores.device.type == "cpu"
        size = max(1, _CACHED_SCORES // self.scores.shape[-1]) if on_cpu else _ROWS_AT_ONCE
        chosen = [
            log_p.gather(-1, targets[rows].to(log_p.device).unsqueeze(-1))[:, 0].cpu()
            for rows, log_p in self.parts(size)
        ]
        return torch.cat(chosen)

    def parts(self, size: int = _ROWS_AT_ONCE) -> Iterator[tuple[slice, Tensor]]:
        """Yields slices of rows with their log-probabilities, float32 [size, vocabulary]."""
        for first in range(0, len(self.rows), size):
            part = slice(first, min(first + size, len(self.rows)))
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


class PassCache:
    """Keeps the states and log p_LM of passes in files, named by inputs, weights and key."""

    def __init__(self, folder: str | Path, model: nn.Module, location: KeyLocation) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._model = hashlib.sha256(f"{model_record(model)} {location}".encode())
        for name, tensor in model.state_dict().items():
            self._model.update(name.encode())
            plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self._model.update(plain.numpy().data)

    def path(self, inputs: Mapping[str, Tensor]) -> Path:
        name = self._model.copy()
        for key, tensor in sorted(inputs.items()):
            name.update(f"{key} {tuple(tensor.shape)}".encode())
            name.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
        return self._folder / f"{name.hexdigest()}.safetensors"

    @staticmethod
    def read(path: Path) -> tuple[Tensor, Tensor] | None:
        """The states and log p_LM of a pass; None if it was not kept."""
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError):
            return None
        return tensors["states"], tensors["log_p_lm"]

    @staticmethod
    def keep(path: Path, states: Tensor, log_p_lm: Tensor) -> None:
        tensors = {"states": states.contiguous().cpu(), "log_p_lm": log_p_lm.contiguous()}
        with replacing(path) as file:
            file.write(save(tensors))


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
    """Scores every token that windows predict. Passes of a cache have no `distributions`."""
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
        # The places in each window of the tokens that it predicts.
        inside = [np.arange(window.skip + 1, window.size + 1) for window in batch]
        length = max(window.size for window in batch)
        offsets = (
            [window.start for window in batch],  # of the tokens here
            [group[window.first_entry].first for window in batch],  # of those of the text
            range(-1, len(batch) * length - 1, length),  # of the states of the pass
        )
        ends, places, rows = (
            np.concatenate([first + one for first, one in zip(firsts, inside, strict=True)])
            for firsts in offsets
        )
        counts = tuple(map(len, inside))
        targets = torch.from_numpy(tokens[ends].astype(np.int64))
        if kept is None:
            states, logits = key_states_and_logits(model, location, inputs)
            at = torch.from_numpy(rows)
            distributions = Distributions(logits.flatten(0, 1), at.to(logits.device))
            states = states.flatten(0, 1)[at.to(states.device)]
            log_p_lm = distributions.log_p(targets)
            if path is not None:
                PassCache.keep(path, states, log_p_lm)
        else:
            distributions = Distributions(torch.empty(0), torch.from_numpy(rows))
            states, log_p_lm = kept[0].to(device), kept[1]
        starts_of_rows = np.repeat([window.start for window in batch], counts)
        prefixes = Prefixes(tokens, starts_of_rows, ends)
        yield TokenScores(states, targets, log_p_lm, places, distributions, prefixes, counts)


class Text:
    """Streams documents as windows."""

    def __init__(
        self,
        documents: Iterable[Document | str],
        tokenizer: Any,
        window: int,
        stride: int,
        concatenate: bool = False,
        pairs: PairTokenizer | None = None,
    ) -> None:
        self.tokens = 0
        self.starts: list[int] = []  # the first token of each document that was read
        self.read: list[Array] = []  # all tokens, int32, with -1 before each document
        self._documents = as_documents(documents)
        self._tokenizer = tokenizer
        self._around = special_tokens(tokenizer)
        self._window, self._stride = window, stride
        self._concatenate = concatenate
        self._pairs = pairs

    def pieces(self) -> Iterator[Piece]:
        """Yields the windows of all documents in order. Those of pairs include their sources."""
        if self._pairs is not None:
            for document, ids in tokenize_pairs(self._pairs, self._documents):
                assert document.source is not None
                (source,) = self._pairs.sources([document.source])
                first, blocks = self.tokens, self._counted([np.array(ids, np.int32)])
                for piece in stream(blocks, self._window, self._stride, first):
                    yield replace(piece, source=source)
        elif self._concatenate:
            blocks = chain.from_iterable(map(self._blocks, self._documents))
            yield from stream(blocks, self._window, self._stride)
        else:
            for document in self._documents:
                first = self.tokens
                yield from stream(self._blocks(document), self._window, self._stride, first)

    def documents_at(self, places: Ints) -> Ints:
        """The number of the document that each token is in, int64 [rows]."""
        return np.searchsorted(np.array(self.starts), places, side="right") - 1

    def _blocks(self, document: Document) -> Iterator[Array]:
        return self._counted(token_blocks(self._tokenizer, document.text, self._around))

    def _counted(self, blocks: Iterable[Array]) -> Iterator[Array]:
        """The blocks of the next document, which are counted as they are read."""
        self.starts.append(self.tokens)
        self.read.append(np.array([-1], np.int32))
        for block in blocks:
            self.tokens += len(block)
            self.read.append(block)
            yield block
