"""Learns the rows of a memory by the likelihood of tokens, or of a datastore's distributions.

An output embedding with several rows a token: p(y) is the softmax over all rows, summed over those
of y. Xu, Alon and Neubig (2023), "Why do nearest neighbor language models work?".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array, Ints
from knn_logits.building.changes import contents_of
from knn_logits.building.settings_choice import (
    OVERSAMPLING,
    entry_of_places,
    part_of_entries,
    pieces_of,
    sample_size,
    without_part,
)
from knn_logits.engine.forward import evaluating
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import windows_of
from knn_logits.measure.likelihood import LMBDAS
from knn_logits.measure.text_pass import score_pieces, tokens_of_scoring_pass
from knn_logits.mixture.vote import Weighing
from knn_logits.progress import Progress
from knn_logits.search.occurrences import Prefixes
from knn_logits.search.retriever import Retriever
from knn_logits.search.shared_tokens import MAX_SHARED_TOKENS
from knn_logits.settings.config import KNNConfig
from knn_logits.store.datastore import Datastore

# Adam's decays, and its step in units of the rows' own size.
_DECAYS, _STEP = (0.9, 0.99), 0.05
_ROWS_AT_ONCE = 256
_MIN_P = 1e-30
_SCALED_TOKENS = 1024
# No more than this share of the corpus is held out.
_MAX_HELD_OUT = 0.1
# Neighbors of a token, and the likeliest tokens that are kept of their vote.
_K, _LIKELIEST = 256, 16
_TAUGHT_AT_ONCE = 128
# The share of the token that follows in the text; the neighbors have the rest. Memory Decoder adds
# both losses (2508.09874).
_TEXT_SHARE = 0.5


@dataclass(frozen=True)
class Held:
    """Tokens that the rows are not learnt from."""

    states: Tensor  # float32 [tokens, dim]
    tokens: Tensor  # int64 [tokens], numbers among the memory's tokens; -1 for another token
    targets: Tensor  # int64 [tokens], as the model numbers them
    log_p_lm: Tensor  # float32 [tokens]


class Rows:
    """Rows that learn in place, [rows, dim], sorted by token; each token has `allotted` of them."""

    def __init__(self, rows: Tensor, allotted: Ints, steps: int) -> None:
        self.rows = rows
        device = rows.device
        self.allotted = torch.from_numpy(allotted).to(device)
        self.first = self.allotted.cumsum(0) - self.allotted
        tokens = torch.arange(len(allotted), device=device)
        self.token = torch.repeat_interleave(tokens, self.allotted)
        self._adam = torch.optim.Adam([rows], betas=_DECAYS)
        self._size = 0.0
        self._steps, self._step = max(1, steps), 0

    def begin(self, scale: float) -> None:
        """Multiplies the rows before they begin to learn, and chooses the size of a step."""
        self.rows *= scale
        self._size = _STEP * float(self.rows.square().mean().sqrt())

    def learn(self, states: Tensor, tokens: Tensor) -> None:
        """Makes tokens, numbers among the memory's, int64 [batch], likelier after some states."""
        p = torch.softmax(states @ self.rows.T, dim=-1)
        row, column = self._rows_of(tokens)
        votes = p[row, column]
        total = torch.zeros(len(tokens), device=p.device).index_add_(0, row, votes)
        # The gradient at a row is its p less its part in the token's p.
        p[row, column] = votes - votes / total.clamp(min=_MIN_P)[row]
        self._move(p.T @ states / len(tokens))

    def learn_shares(self, states: Tensor, tokens: Tensor, shares: Tensor) -> None:
        """Draws the memory to shares of tokens that sum to 1, each [batch, likeliest]."""
        p = torch.softmax(states @ self.rows.T, dim=-1)
        by_token = p.new_zeros(len(p), len(self.allotted)).index_add_(1, self.token, p)
        goal = torch.zeros_like(by_token).scatter_add_(1, tokens, shares)
        ratio = goal / by_token.clamp(min=_MIN_P)
        p -= p * ratio[:, self.token]
        self._move(p.T @ states / len(tokens))

    def _rows_of(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The place in a batch, and the row, of each row of each token."""
        allotted = self.allotted[tokens]
        batch = torch.arange(len(tokens), device=tokens.device)
        row = torch.repeat_interleave(batch, allotted)
        before = torch.repeat_interleave(allotted.cumsum(0) - allotted, allotted)
        column = torch.arange(len(row), device=tokens.device) - before
        return row, column + self.first[tokens][row]

    def _move(self, gradient: Tensor) -> None:
        self._step += 1
        for group in self._adam.param_groups:
            group["lr"] = self._size * max(0.05, 1.0 - self._step / self._steps)
        self.rows.grad = gradient
        self._adam.step()

    def perplexity(self, held: Held, scale: float = 1.0) -> float:
        """The perplexity of other tokens under the mixture, at the best λ, for scaled rows."""
        log_p = torch.full((len(held.tokens),), -math.inf)
        for first in range(0, len(held.tokens), _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            tokens = held.tokens[part].to(self.rows.device)
            learned = tokens >= 0
            states = held.states[part].to(self.rows.device)[learned]
            p = torch.softmax(scale * (states @ self.rows.T), dim=-1)
            row, column = self._rows_of(tokens[learned])
            total = p.new_zeros(len(states)).index_add_(0, row, p[row, column])
            log_p[part][learned.cpu()] = total.log().cpu()
        least = math.inf
        for lmbda in LMBDAS:
            mixed = torch.logaddexp(
                log_p + math.log(max(lmbda, _MIN_P)), held.log_p_lm + math.log1p(-lmbda)
            )
            least = min(least, -float(mixed.double().mean()))
        return math.exp(least)


def best_scale(rows: Rows, held: Held, variance: float) -> float:
    """The factor at which rows that are centers of states predict other tokens best."""
    fields = (held.states, held.tokens, held.targets, held.log_p_lm)
    held = Held(*(values[:_SCALED_TOKENS] for values in fields))
    scales = [2.0**power / variance for power in range(1, 8)]
    return min(scales, key=lambda scale: rows.perplexity(held, scale))


def held_out(store: Datastore, seed: int) -> Array:
    """Chooses whole documents of the corpus, or else its end, bool [entries]."""
    entries = len(store)
    size = max(1, min(int(_MAX_HELD_OUT * entries), sample_size(entries)))
    parts = part_of_entries(store)
    held = np.zeros(entries, dtype=bool)
    numbers, counts = np.unique(parts, return_counts=True)
    for place in np.random.default_rng(seed).permutation(len(numbers)).tolist():
        if held.sum() + counts[place] <= 1.5 * size and len(numbers) > 1:
            held |= parts == numbers[place]
        if held.sum() >= size:
            break
    if not held.any():
        held[-size:] = True
    return held


def read_held(
    model: nn.Module,
    location: KeyLocation,
    store: Datastore,
    held: Array,
    numbers: Ints,
    progress: Progress,
) -> Held:
    """Runs the model over windows with held-out entries; `numbers` maps tokens, or -1."""
    before = np.concatenate([[0], np.cumsum(held)])
    windows = [
        window
        for window in windows_of(store.contexts, store.manifest.windows)
        if before[window.first_entry + window.entries] > before[window.first_entry]
    ]
    batch = tokens_of_scoring_pass(model)
    states, targets, log_p_lm = [], [], []
    done, total = 0, int(held.sum())
    progress("held-out text", 0, total)
    with evaluating(model):
        for scored in score_pieces(model, location, pieces_of(store, windows), batch):
            inside = torch.from_numpy(held[entry_of_places(store, scored.places)])
            states.append(scored.states.detach().float().cpu()[inside])
            targets.append(scored.targets[inside])
            log_p_lm.append(scored.log_p_lm[inside])
            done += int(inside.sum())
            progress("held-out text", done, total)
    tokens = torch.cat(targets)
    return Held(torch.cat(states), torch.from_numpy(numbers)[tokens], tokens, torch.cat(log_p_lm))


@dataclass(frozen=True)
class Shares:
    """The targets of the fit at some entries."""

    tokens: Array  # int32 [entries, likeliest], numbers among the memory's tokens
    shares: Array  # float32 [entries, likeliest], which sum to 1


def shares_by(
    teacher: Datastore,
    corpus: Datastore,
    entries: Ints,
    held: Array,
    numbers: Ints,
    progress: Progress,
) -> Shares:
    """The shares that a datastore gives to tokens of a corpus, without its held-out parts."""
    settings = teacher.manifest.settings
    k = min(settings.k, _K)
    config = KNNConfig.of(settings, k=min(len(teacher), OVERSAMPLING * k))
    retriever, weighing = Retriever(teacher, config), Weighing.of(config)
    parts = part_of_entries(teacher)
    part_of = _parts_in(teacher, corpus, parts)
    away = np.isin(parts, part_of[held & (part_of >= 0)]).astype(np.int32)
    number_of = torch.from_numpy(numbers)
    targets = number_of[corpus.values[torch.from_numpy(entries)].long()]
    count = min(_LIKELIEST, int(numbers.max()) + 1)
    tokens = np.empty((len(entries), count + 1), np.int32)
    shares = np.empty((len(entries), count + 1), np.float32)
    for first in range(0, len(entries), _TAUGHT_AT_ONCE):
        progress("distributions", first, len(entries))
        batch = slice(first, first + _TAUGHT_AT_ONCE)
        ids = entries[batch]
        states = torch.from_numpy(corpus.keys(ids).astype(np.float32))
        neighbors = retriever.search(states, _before(corpus, ids)).to("cpu")
        neighbors = without_part(neighbors, torch.from_numpy(part_of[ids]), parts)
        neighbors = without_part(neighbors, torch.ones(len(ids), dtype=torch.int32), away)
        votes = _votes(
            weighing.log_weights(neighbors).exp(), number_of[neighbors.values], len(number_of)
        )
        likeliest = votes.topk(count, dim=-1)
        total = likeliest.values.sum(dim=-1, keepdim=True)
        # Without a neighbor, all of the share is the token's own.
        voted = (1.0 - _TEXT_SHARE) * likeliest.values / total.clamp(min=1e-30)
        voted = torch.where(total > 0, voted, 0.0)
        tokens[batch, :count], shares[batch, :count] = likeliest.indices, voted
        tokens[batch, count], shares[batch, count] = targets[batch], 1.0 - voted.sum(dim=-1)
    progress("distributions", len(entries), len(entries))
    return Shares(tokens, shares)


def _before(corpus: Datastore, entries: Ints) -> Prefixes:
    """The last tokens before each entry of a corpus, as many as are compared."""
    contexts = corpus.contexts
    context = np.searchsorted(contexts.first_entry, entries, side="right") - 1
    places = (entries + 1 + context)[:, None] + np.arange(-MAX_SHARED_TOKENS, 0)
    inside = places >= contexts.first[context][:, None]
    tokens = np.where(inside, np.asarray(corpus.tokens[places.clip(min=0)], np.int64), -1)
    first = np.arange(len(entries), dtype=np.int64) * MAX_SHARED_TOKENS
    return Prefixes(tokens.ravel(), first, first + MAX_SHARED_TOKENS)


def _votes(weights: Tensor, numbers: Tensor, most: int) -> Tensor:
    """Sums weights by token, float32 [rows, tokens]; tokens that the memory lacks get nothing."""
    votes = torch.zeros(len(weights), most)
    learned = numbers >= 0
    return votes.scatter_add_(1, numbers.clamp(min=0), weights.nan_to_num(0.0) * learned)


def _parts_in(teacher: Datastore, corpus: Datastore, parts: Array) -> Array:
    """int32 [entries of the corpus], the part of the datastore with the same document; -1: none."""
    if corpus is teacher:
        return parts
    documents = {digest: number for number, _, digest in contents_of(teacher)}
    part_of = np.full(len(corpus), -1, np.int32)
    for number, _, digest in contents_of(corpus):
        same = documents.get(digest)
        if same is None:
            continue
        first, length = corpus.documents.first[number], corpus.documents.length[number]
        entries = corpus.contexts.entries_of(first[None], length[None])
        # The same document may begin a context in only one datastore.
        places = teacher.documents.first[same] + np.arange(length)[length - len(entries) :]
        part_of[entries] = parts[entry_of_places(teacher, places).clip(0, len(parts) - 1)]
    return part_of
