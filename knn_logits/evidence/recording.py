"""Records a generation: distributions until the tokens are known, then these tokens' alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from knn_logits.engine.hooks import Course
from knn_logits.errors import TraceError
from knn_logits.locks import new_lock
from knn_logits.mixture.vote import Candidates, Vote, largest
from knn_logits.search.neighbors import Neighbors

# The most generations that stay recorded, and their most bytes.
_MOST_RECORDINGS = 32
_MOST_BYTES = 32 << 20
NO_RECORD = (
    "this processor has no record of that generation: pass the whole output of a recent "
    "generate() with record=True; after beam search, pass the text to explain()"
)


@dataclass(frozen=True)
class Chosen:
    """A token of a text, and the step that gave it: its neighbors are one row."""

    token: int
    neighbors: Neighbors
    log_weights: Tensor  # [1, k]
    lmbda: float
    log_p_lm: float | None  # None if it was not kept
    likeliest: tuple[int, float] | None = None  # the model's own choice and its log p_LM
    # The likeliest tokens in the mixture, each with its p, p_LM and p_kNN.
    candidates: Sequence[tuple[int, float, float, float]] = ()


@dataclass
class Step:
    """One call of the processor."""

    length: int
    # int64 [rows, length] on the CPU, until the choice is known; None afterwards.
    ids: Tensor | None
    neighbors: Neighbors
    weights: Tensor  # log w_i of the votes that counted, [rows, k]
    lmbda: float | Tensor
    log_p_lm: Tensor | None  # [rows, vocabulary], until the choice is known; None afterwards
    likeliest: tuple[Tensor, Tensor]  # log p_LM and the model's own choice, [rows] each
    tokens: Tensor | None = None  # int64 [rows], the chosen tokens
    chosen_log_p_lm: Tensor | None = None  # [rows]
    going_on: Tensor | None = None  # int64 [rows], 0 for rows that had ended and get only padding
    candidates: Candidates | None = None

    def settle(self, input_ids: Tensor) -> bool:
        """Notes which tokens were chosen, of ids on the CPU, and drops the other probabilities."""
        if self.ids is None or self.log_p_lm is None:
            return True
        if not torch.equal(self.ids, input_ids[:, : self.length]):
            return False
        self.tokens = input_ids[:, self.length].clone()
        chosen = self.tokens.unsqueeze(-1).to(self.log_p_lm.device, non_blocking=True)
        self.chosen_log_p_lm = self.log_p_lm.gather(-1, chosen)[:, 0]
        self.ids = self.log_p_lm = None
        return True

    def goes_on(self, row: int) -> bool:
        """Whether a row got a token and not padding, as far as is known."""
        return self.going_on is None or bool(self.going_on[row])

    def chosen(self, row: int, token: int) -> Chosen:
        """The token that a row chose."""
        part = slice(row, row + 1)
        log_p_lm = None
        if self.log_p_lm is not None:
            log_p_lm = float(self.log_p_lm[row, token])
        elif self.chosen_log_p_lm is not None and self.tokens is not None:
            log_p_lm = float(self.chosen_log_p_lm[row]) if self.tokens[row] == token else None
        return Chosen(
            token,
            self.neighbors[part],
            self.weights[part],
            float(self.lmbda[row]) if isinstance(self.lmbda, Tensor) else self.lmbda,
            log_p_lm,
            (int(self.likeliest[1][row]), float(self.likeliest[0][row])),
            self.candidates[row] if self.candidates is not None else (),
        )


@dataclass
class Recording:
    """The steps of one `generate()`."""

    prompt: Tensor  # int64 [rows, prompt length] on the CPU, the ids of the first call
    ends: list[int]
    steps: dict[int, Step] = field(default_factory=dict)
    open: list[Step] = field(default_factory=list)  # of the latest pass, not chosen from yet
    bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fits(self, sequences: Tensor) -> bool:
        """Whether the recorded `generate()` can have returned these sequences."""
        rows, first = self.prompt.shape
        if sequences.shape[1] <= first or len(sequences) != rows:
            return False
        if not torch.equal(sequences[:, :first], self.prompt):
            return False
        with self.lock:
            steps = [step for length, step in self.steps.items() if first <= length]
        return all(
            step.tokens is None or torch.equal(sequences[:, step.length], step.tokens)
            for step in steps
            if step.length < sequences.shape[1]
        )

    def chosen(self, ids: list[int], row: int, pad: int | None) -> list[Chosen]:
        """The tokens of a row after the prompt, each with its step."""
        first = self.prompt.shape[1]
        with self.lock:
            steps = dict(self.steps)
        end = len(ids)
        if any(step.going_on is None for step in steps.values()):
            while end > first and ids[end - 1] == pad:
                end -= 1
            # An end token may also be the padding.
            end += end < len(ids) and pad in self.ends
        choices = []
        for position in range(first, end):
            step = steps.get(position)
            if step is None or not step.goes_on(row):
                break
            choices.append(step.chosen(row, ids[position]))
        return choices


class Recorder:
    """Records the generations of a processor, with the likeliest `candidates` of each step."""

    def __init__(self, ends: list[int], candidates: int) -> None:
        self._ends, self._candidates = ends, candidates
        self._recordings: list[Recording] = []
        self._lock = new_lock(self)

    def add(
        self, course: Course, input_ids: Tensor, vote: Vote, going_on: Tensor | None, *, first: bool
    ) -> None:
        """Adds a step; `first` says whether it is the first call about its forward pass."""
        recording: Recording | None = course.recording
        if recording is not None and first:
            with recording.lock:
                settled = recording.open[0].settle(input_ids)
                for step in recording.open[1:] if settled else ():
                    # This candidate was not accepted.
                    accepted = step.length < input_ids.shape[1] and step.settle(input_ids)
                    if not accepted and recording.steps.get(step.length) is step:
                        del recording.steps[step.length]
                recording.open = [] if settled else recording.open
            # The rows of beam search change places, so that nothing tells which token each chose.
            recording = recording if settled else None
        if recording is None:
            recording = Recording(input_ids, self._ends)
            with self._lock:
                kept = [one for one in self._recordings if one is not course.recording]
                kept = [*kept, recording][-_MOST_RECORDINGS:]
                while len(kept) > 1 and sum(one.bytes for one in kept) > _MOST_BYTES:
                    del kept[0]
                self._recordings = kept
            course.recording = recording
        step = Step(
            length=input_ids.shape[1],
            ids=input_ids,
            neighbors=vote.neighbors,
            weights=vote.log_weights,
            lmbda=vote.lmbda,
            log_p_lm=vote.log_p_lm,
            going_on=going_on,
            likeliest=largest(vote.log_p_lm),
            candidates=vote.candidates(self._candidates) if self._candidates else None,
        )
        with recording.lock:
            recording.steps[step.length] = step
            recording.open.append(step)
            recording.bytes += 24 * vote.neighbors.ids.numel()

    def fitting(self, sequences: Tensor, course: Course | None = None) -> Recording:
        """The recording of an output of `generate()`. That of `course` is looked at first."""
        latest = None if course is None else course.recording
        with self._lock:
            recordings = self._recordings[::-1]
        for recording in sorted(recordings, key=lambda recording: recording is not latest):
            if recording.fits(sequences):
                return recording
        raise TraceError(NO_RECORD)
