"""Records a generation while it runs, so that it can be traced afterwards.

A step's chosen token is known only at the next call, and beams are reordered in between. So the
model's distribution is kept until the next call. After it only the chosen tokens' probabilities are
kept.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from knn_logits.mixture.vote import Candidates
from knn_logits.search.neighbors import Neighbors


@dataclass
class Step:
    """One call of the processor."""

    length: int
    ids: Tensor | None  # int64 [rows, length], until the choice is known; None afterwards
    neighbors: Neighbors
    weights: Tensor  # log w_i of the votes that counted, [rows, k]
    lmbda: float | Tensor
    log_p_lm: Tensor | None  # [rows, vocabulary], until the choice is known; None afterwards
    end_log_p_lm: Tensor
    parents: Tensor | None = None  # int64 [rows], the row that each chosen token continued
    tokens: Tensor | None = None  # int64 [rows], the chosen tokens
    chosen_log_p_lm: Tensor | None = None
    going_on: Tensor | None = None  # int64 [rows], 0 for rows that had ended and get only padding
    likeliest: tuple[Tensor, Tensor] | None = None
    candidates: Candidates | None = None

    def settle(self, input_ids: Tensor, inputs: Tensor) -> bool:
        """Notes which tokens were chosen, and drops the rest of the distribution."""
        if self.ids is None or self.log_p_lm is None:
            return True
        before, after = self.ids, input_ids[:, : self.length]
        parents = None
        if before.shape != after.shape:
            return False
        if not torch.equal(before, after):
            parents = _parents(before, after, inputs)
            if parents is None:
                return False
        self.parents = parents
        self.tokens = input_ids[:, self.length]
        chosen = self.tokens.unsqueeze(-1)
        continued = self.log_p_lm if parents is None else self.log_p_lm[parents]
        self.chosen_log_p_lm = continued.gather(-1, chosen)[:, 0]
        self.ids = self.log_p_lm = None
        return True

    def goes_on(self, row: int) -> bool:
        """Whether a row got a token and not padding, as far as is known."""
        return self.going_on is None or bool(self.going_on[row])

    def lmbda_of(self, row: int) -> float:
        """The weight of a row's neighbors, if it has any."""
        return float(self.lmbda[row]) if isinstance(self.lmbda, Tensor) else self.lmbda

    def likeliest_of(self, row: int) -> tuple[int, float] | None:
        """The model's likeliest token for a row, and its log p_LM; None if it was not kept."""
        if self.likeliest is None:
            return None
        log_p, tokens = self.likeliest
        return int(tokens[row]), float(log_p[row])

    def log_p_lm_of(self, row: int, token: int, ends: list[int]) -> float | None:
        """The model's log-probability of a token that a row chose; None if it was not kept."""
        if self.log_p_lm is not None:
            return float(self.log_p_lm[row, token])
        if self.tokens is not None and self.chosen_log_p_lm is not None:
            rows = torch.arange(len(self.tokens), device=self.tokens.device)
            parents = rows if self.parents is None else self.parents
            found = ((parents == row) & (self.tokens == token)).nonzero()
            if len(found):
                return float(self.chosen_log_p_lm[found[0, 0]])
        return float(self.end_log_p_lm[row, ends.index(token)]) if token in ends else None


def _parents(before: Tensor, after: Tensor, inputs: Tensor) -> Tensor | None:
    """Finds the row of `before` that each sequence of `after` continues; None if one has none."""
    same = (after.unsqueeze(1) == before.unsqueeze(0)).all(dim=-1)
    same &= inputs.unsqueeze(1) == inputs.unsqueeze(0)
    if not bool(same.any(dim=-1).all()):
        return None
    return same.int().argmax(dim=-1)


def sources_of(encoded: Tensor | None) -> Tensor | None:
    """Numbers the sources that rows read, or the embeddings that they read in place of a prompt."""
    if encoded is None:
        return None
    rows = encoded.detach().contiguous().view(torch.uint8).cpu().numpy()
    digests = [hashlib.blake2b(row.tobytes(), digest_size=7).digest() for row in rows]
    return torch.tensor([int.from_bytes(digest, "big") for digest in digests])


def inputs_of(prompt: Tensor, sources: Tensor | None = None) -> Tensor:
    """Numbers the inputs that rows continue. Beams and samples of one prompt have one input."""
    same = (prompt.unsqueeze(1) == prompt.unsqueeze(0)).all(dim=-1)
    if sources is not None:
        sources = sources.to(prompt.device)
        same &= sources.unsqueeze(1) == sources.unsqueeze(0)
    return same.int().argmax(dim=-1)


@dataclass
class Recording:
    """The steps of one `generate()`."""

    prompt: Tensor  # int64 [rows, prompt length], the ids of the first call
    inputs: Tensor  # int64 [rows], the result of `inputs_of`
    ends: list[int]
    steps: dict[int, Step] = field(default_factory=dict)
    open: list[Step] = field(default_factory=list)
    bytes: int = 0
    states: Tensor | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def goes_on(self, input_ids: Tensor) -> bool:
        """Settles the open steps, at the first call of the next forward pass."""
        first, *others = self.open
        with self.lock:
            if not first.settle(input_ids, self.inputs):
                return False
            for step in others:
                # This candidate was not accepted.
                kept = step.length < input_ids.shape[1] and step.settle(input_ids, self.inputs)
                if not kept and self.steps.get(step.length) is step:
                    del self.steps[step.length]
            self.open = []
        return True

    def fits(self, sequences: Tensor, beam_indices: Tensor | None) -> bool:
        """Whether the recorded `generate()` can have returned these sequences."""
        rows, first = self.prompt.shape
        if sequences.shape[1] <= first or (beam_indices is None and len(sequences) != rows):
            return False
        starts = sequences[:, :first]
        if not bool((starts.unsqueeze(1) == self.prompt.unsqueeze(0)).all(-1).any(-1).all()):
            return False
        with self.lock:
            steps = [step for length, step in self.steps.items() if first <= length]
        alike = {} if beam_indices is None else self.alike()
        for step in steps:
            if step.length >= sequences.shape[1] or step.tokens is None:
                continue
            chosen = sequences[:, step.length]
            if beam_indices is None:
                if step.parents is not None or not torch.equal(chosen, step.tokens):
                    return False
            elif not _has_beams(step, alike, chosen, beam_indices, step.length - first):
                return False
        return True

    def alike(self) -> dict[int, Tensor]:
        """By length, numbers rows so that equal texts of one input are equal, int64 [rows]."""
        with self.lock:
            steps = sorted(self.steps.items(), key=lambda item: item[0])
        alike, found = self.inputs, {}
        for length, step in steps:
            found[length] = alike
            if step.tokens is None:
                break
            before = alike if step.parents is None else alike[step.parents]
            alike = inputs_of(torch.stack([before, step.tokens.to(before.device)], dim=-1))
        return found

    def add(self, step: Step) -> None:
        """Adds a step whose choice is still open."""
        with self.lock:
            self.steps[step.length] = step
            self.open.append(step)
            neighbors = step.neighbors
            self.bytes += 24 * neighbors.ids.numel() + 8 * step.end_log_p_lm.numel()


def _has_beams(
    step: Step, alike: dict[int, Tensor], chosen: Tensor, beam_indices: Tensor, place: int
) -> bool:
    if place + 1 >= beam_indices.shape[1]:
        return True
    # A beam's last token may have ended it, and then the recording did not see the token.
    goes_on = beam_indices[:, place + 1] >= 0
    assert step.tokens is not None
    rows = torch.arange(len(step.tokens), device=step.tokens.device)
    parents = rows if step.parents is None else step.parents
    same = alike.get(step.length, rows)
    same_row = same[beam_indices[:, place]].unsqueeze(1) == same[parents]
    found = (same_row & (chosen.unsqueeze(1) == step.tokens)).any(-1)
    return bool((found | ~goes_on).all())


def end_tokens(config: Any, vocabulary: int) -> list[int]:
    """Returns the tokens that end a sequence, without those that the model has no score for."""
    ends = getattr(config, "eos_token_id", None)
    ends = ends.flatten().tolist() if isinstance(ends, Tensor) else ends
    every = ends if isinstance(ends, (list, tuple)) else [ends]
    return [int(end) for end in every if end is not None and 0 <= int(end) < vocabulary]
