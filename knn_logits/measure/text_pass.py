"""Runs a model over windows of text: the queries, and the model's probability of each token.

This module knows models and windows, but no datastore, no search and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Ints
from knn_logits.engine.forward import input_device, key_states_and_logits, windows_batch
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import Piece, TextWindow, batches
from knn_logits.search.occurrences import Prefixes

# Windows of similar size share a batch. They are sorted within groups of so many batches.
_BATCHES_A_GROUP = 16
# The activations of a larger batch no longer fit the cache of a CPU.
_BATCH_TOKENS = {"cpu": 2048, "cuda": 32_768}
# The most scores of the model held at once, which are 256 MB of float32.
_SCORES = 64 << 20
_ROWS_AT_ONCE = 128


@dataclass(frozen=True)
class Distributions:
    """A model's distributions at some positions, of which few are computed at a time."""

    scores: Tensor  # [positions of the pass, vocabulary], any floating type
    rows: Tensor  # int64 [rows], the chosen positions of the pass, on the device of the scores

    def __len__(self) -> int:
        return len(self.rows)

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


def scoring_batch_tokens(device: torch.device, vocabulary: int) -> int:
    """The tokens of a batch that a device works through quickly, and whose scores fit memory."""
    return max(1, min(_BATCH_TOKENS.get(device.type, 8192), _SCORES // max(1, vocabulary)))


def score_pieces(
    model: nn.Module, location: KeyLocation, pieces: Iterable[Piece], batch_tokens: int
) -> Iterator[TokenScores]:
    """Scores every token that windows of a text predict."""
    device = input_device(model)
    group: list[Piece] = []
    waiting = 0
    for piece in pieces:
        group.append(piece)
        waiting += piece.size
        if waiting >= _BATCHES_A_GROUP * batch_tokens:
            yield from _score_group(model, location, group, batch_tokens, device)
            group, waiting = [], 0
    if group:
        yield from _score_group(model, location, group, batch_tokens, device)


def _score_group(
    model: nn.Module,
    location: KeyLocation,
    group: list[Piece],
    batch_tokens: int,
    device: torch.device,
) -> Iterator[TokenScores]:
    tokens = np.concatenate([piece.tokens for piece in group])
    starts = np.cumsum([0, *(len(piece.tokens) for piece in group[:-1])]).tolist()
    windows = [
        TextWindow(start, piece.size, piece.skip, number, source=piece.source)
        for number, (start, piece) in enumerate(zip(starts, group, strict=True))
    ]
    for batch in batches(windows, batch_tokens):
        inputs = windows_batch(tokens, batch, device)
        states, logits = key_states_and_logits(model, location, inputs)
        length, pieces = logits.shape[1], [group[window.first_entry] for window in batch]
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
        distributions = Distributions(logits.flatten(0, 1), rows.to(logits.device))
        tokens_of_rows = torch.from_numpy(targets.astype(np.int64))
        yield TokenScores(
            states.flatten(0, 1)[rows.to(states.device)],
            tokens_of_rows,
            distributions.log_p(tokens_of_rows),
            np.concatenate(places),
            distributions,
            Prefixes(tokens, starts_of_rows, np.concatenate(ends)),
            tuple(counts),
        )
