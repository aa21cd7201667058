"""What a processor keeps of a generation while it runs, so that it can be traced afterwards.

A step's chosen token is known only at the next call, and beams are reordered in between; the
model's distribution is therefore kept until then, and only the chosen tokens' share of it after.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor

from knn_logits.neighbors import Neighbors


@dataclass
class Step:
    """One call of the processor.

    Attributes:
        length: Tokens before the one that was chosen.
        ids: int64 [rows, length], while the choice is open; None after.
        neighbors: What the search found for each row.
        weights: log w_i of the votes that counted, [rows, k].
        lmbda: The weight of the neighbors where there are any.
        log_p_lm: [rows, vocabulary] while the choice is open; None after.
        parents: int64 [rows], the row that each chosen token continued; None when that is its own.
        tokens: int64 [rows], the tokens chosen.
        chosen_log_p_lm: [rows], the model's log-probabilities of those tokens.
        end_log_p_lm: [rows, ends], those of the tokens that end a sequence.
    """

    length: int
    ids: Tensor | None
    neighbors: Neighbors
    weights: Tensor
    lmbda: float
    log_p_lm: Tensor | None
    end_log_p_lm: Tensor
    parents: Tensor | None = None
    tokens: Tensor | None = None
    chosen_log_p_lm: Tensor | None = None

    def settle(self, input_ids: Tensor) -> bool:
        """Notes which tokens were chosen, and lets go of the rest of the distribution.

        Args:
            input_ids: int64 [rows, more than length], the sequences after the choice.

        Returns:
            False when the sequences do not continue this step's.
        """
        if self.ids is None or self.log_p_lm is None:
            return True
        before, after = self.ids, input_ids[:, : self.length]
        parents = None
        if before.shape != after.shape:
            return False
        if not torch.equal(before, after):
            parents = _parents(before, after)
            if parents is None:
                return False
        self.parents = parents
        self.tokens = input_ids[:, self.length]
        chosen = self.tokens.unsqueeze(-1)
        continued = self.log_p_lm if parents is None else self.log_p_lm[parents]
        self.chosen_log_p_lm = continued.gather(-1, chosen)[:, 0]
        self.ids = self.log_p_lm = None
        return True

    def log_p_lm_of(self, row: int, token: int, ends: list[int]) -> float | None:
        """The model's log-probability of a token that a row chose, None when it was not kept."""
        if self.log_p_lm is not None:
            return float(self.log_p_lm[row, token])
        if self.tokens is not None and self.chosen_log_p_lm is not None:
            rows = torch.arange(len(self.tokens), device=self.tokens.device)
            parents = rows if self.parents is None else self.parents
            found = ((parents == row) & (self.tokens == token)).nonzero()
            if len(found):
                return float(self.chosen_log_p_lm[found[0, 0]])
        return float(self.end_log_p_lm[row, ends.index(token)]) if token in ends else None


def _parents(before: Tensor, after: Tensor) -> Tensor | None:
    """For each sequence of `after` the row of `before` that equals it, None when one has none."""
    same = (after.unsqueeze(1) == before.unsqueeze(0)).all(dim=-1)
    if not bool(same.any(dim=-1).all()):
        return None
    return same.int().argmax(dim=-1)


@dataclass
class Recording:
    """The steps of one `generate()`.

    Attributes:
        prompt: int64 [rows, prompt length], the ids of the first call.
        ends: Tokens that end a sequence.
        steps: By length.
    """

    prompt: Tensor
    ends: list[int]
    steps: dict[int, Step] = field(default_factory=dict)
    open: list[Step] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def continued_by(self, input_ids: Tensor) -> bool:
        """Whether a call with these ids belongs to the same `generate()`."""
        length = self.prompt.shape[1]
        return (
            input_ids.shape[0] == self.prompt.shape[0]
            and input_ids.shape[1] > length
            and torch.equal(input_ids[:, :length], self.prompt)
        )

    def settle(self, input_ids: Tensor) -> None:
        """Settles the open steps once a new forward pass shows what was chosen."""
        with self.lock:
            for step in self.open:
                kept = step.length < input_ids.shape[1] and step.settle(input_ids)
                if not kept and self.steps.get(step.length) is step:
                    del self.steps[step.length]
            self.open = []

    def add(self, step: Step) -> None:
        """Adds a step whose choice is still open."""
        with self.lock:
            self.steps[step.length] = step
            self.open.append(step)
