"""Records a generation: distributions until the tokens are known, then these tokens' alone."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from knn_logits.copies import Copies
from knn_logits.engine.calls import Course
from knn_logits.errors import TraceError
from knn_logits.locks import cached_property, new_lock
from knn_logits.mixture.vote import Candidates, Vote
from knn_logits.search.neighbors import Neighbors

# The most generations that stay recorded, and their most bytes.
_MOST_RECORDINGS = 32
_MOST_BYTES = 32 << 20
NO_RECORD = (
    "this processor has no record of that generation: pass the whole output of a recent "
    "generate() with record=True; beam search needs return_dict_in_generate=True"
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
    end_log_p_lm: Tensor  # [rows, ends], of tokens that end a sequence
    parents: Tensor | None = None  # int64 [rows], the row that each chosen token continued
    tokens: Tensor | None = None  # int64 [rows], the chosen tokens
    chosen_log_p_lm: Tensor | None = None  # [rows]
    going_on: Tensor | None = None  # int64 [rows], 0 for rows that had ended and get only padding
    likeliest: tuple[Tensor, Tensor] | None = None  # log p_LM and the token, [rows] each
    candidates: Candidates | None = None

    def settle(self, input_ids: Tensor, inputs: Tensor) -> bool:
        """Notes which tokens were chosen, of ids on the CPU, and drops the other probabilities."""
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
        self.tokens = input_ids[:, self.length].clone()
        chosen = self.tokens.unsqueeze(-1).to(self.log_p_lm.device, non_blocking=True)
        continued = self.log_p_lm if parents is None else self.log_p_lm[parents]
        self.chosen_log_p_lm = continued.gather(-1, chosen)[:, 0]
        self.ids = self.log_p_lm = None
        return True

    def goes_on(self, row: int) -> bool:
        """Whether a row got a token and not padding, as far as is known."""
        return self.going_on is None or bool(self.going_on[row])

    def chosen(self, row: int, token: int, log_p_lm: float | None) -> Chosen:
        """The token that a row chose."""
        part = slice(row, row + 1)
        likeliest = None
        if self.likeliest is not None:
            likeliest = int(self.likeliest[1][row]), float(self.likeliest[0][row])
        return Chosen(
            token,
            self.neighbors[part],
            self.weights[part],
            float(self.lmbda[row]) if isinstance(self.lmbda, Tensor) else self.lmbda,
            log_p_lm,
            likeliest,
            self.candidates[row] if self.candidates is not None else (),
        )

    def log_p_lm_of(self, row: int, token: int, ends: list[int]) -> float | None:
        """The model's log-probability of a token that a row chose; None if it was not kept."""
        if self.log_p_lm is not None:
            return float(self.log_p_lm[row, token])
        if self.tokens is not None and self.chosen_log_p_lm is not None:
            rows = torch.arange(len(self.tokens))
            parents = rows if self.parents is None else self.parents
            rows_with_token = ((parents == row) & (self.tokens == token)).nonzero()
            if len(rows_with_token):
                return float(self.chosen_log_p_lm[rows_with_token[0, 0]])
        return float(self.end_log_p_lm[row, ends.index(token)]) if token in ends else None


def _parents(before: Tensor, after: Tensor, inputs: Tensor) -> Tensor | None:
    """Finds the row of `before` that each sequence of `after` continues; None if one has none."""
    same = (after.unsqueeze(1) == before.unsqueeze(0)).all(dim=-1)
    same &= inputs.unsqueeze(1) == inputs.unsqueeze(0)
    if not bool(same.any(dim=-1).all()):
        return None
    return same.int().argmax(dim=-1)


def sources_of(encoded: Tensor | None) -> Tensor | None:
    """Numbers the sources or embeddings that rows read, int64 [rows]; equal bits, equal numbers."""
    if encoded is None:
        return None
    rows = encoded.detach().contiguous().view(torch.uint8).cpu().numpy()
    digests = [hashlib.blake2b(row.tobytes(), digest_size=7).digest() for row in rows]
    return torch.tensor([int.from_bytes(digest, "big") for digest in digests])


def inputs_of(prompt: Tensor) -> Tensor:
    """Numbers the inputs that rows continue, int64 [rows]. Beams of a prompt have one input."""
    return (prompt.unsqueeze(1) == prompt.unsqueeze(0)).all(dim=-1).int().argmax(dim=-1)


@dataclass
class Recording:
    """The steps of one `generate()`."""

    prompt: Tensor  # int64 [rows, prompt length] on the CPU, the ids of the first call
    inputs: Tensor  # int64 [rows], the result of `inputs_of`
    ends: list[int]
    steps: dict[int, Step] = field(default_factory=dict)
    open: list[Step] = field(default_factory=list)  # of the latest pass, not chosen from yet
    bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def _copies(self) -> Copies:
        return Copies(ends=torch.tensor(self.ends, dtype=torch.int64))

    def goes_on(self, input_ids: Tensor) -> bool:
        """Settles the open steps, at the first call of the next forward pass."""
        first, *candidates = self.open
        with self.lock:
            if not first.settle(input_ids, self.inputs):
                return False
            for step in candidates:
                # This candidate was not accepted.
                accepted = step.length < input_ids.shape[1] and step.settle(input_ids, self.inputs)
                if not accepted and self.steps.get(step.length) is step:
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

    def chosen(
        self, ids: list[int], rows: list[int], alike: dict[int, Tensor], pad: int | None
    ) -> list[Chosen]:
        """The tokens after the prompt, each with its step; `rows` are -1 after a beam's end."""
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
        for position, row in zip(range(first, end), rows, strict=False):
            step = steps.get(position)
            if row < 0 or step is None or not step.goes_on(row):
                break
            equal = [row]
            if position in alike:
                equal += (alike[position] == alike[position][row]).nonzero()[:, 0].tolist()
            scores = (step.log_p_lm_of(same, ids[position], self.ends) for same in equal)
            log_p_lm = next((score for score in scores if score is not None), None)
            choices.append(step.chosen(row, ids[position], log_p_lm))
        return choices

    def alike(self) -> dict[int, Tensor]:
        """By length, numbers rows so that equal texts of one input are equal, int64 [rows]."""
        with self.lock:
            steps = sorted(self.steps.items(), key=lambda item: item[0])
        alike, by_length = self.inputs, {}
        for length, step in steps:
            by_length[length] = alike
            if step.tokens is None:
                break
            before = alike if step.parents is None else alike[step.parents]
            alike = inputs_of(torch.stack([before, step.tokens.to(before.device)], dim=-1))
        return by_length

    def add(self, input_ids: Tensor, vote: Vote, going_on: Tensor | None, candidates: int) -> None:
        """Adds a step whose choice is still open."""
        log_p_lm = vote.log_p_lm
        step = Step(
            length=input_ids.shape[1],
            ids=input_ids,
            neighbors=vote.neighbors,
            weights=vote.log_weights,
            lmbda=vote.lmbda,
            log_p_lm=log_p_lm,
            end_log_p_lm=log_p_lm.index_select(-1, self._copies.at(log_p_lm.device, "ends")),
            going_on=going_on,
            likeliest=log_p_lm.max(dim=-1),
            candidates=vote.candidates(candidates) if candidates else None,
        )
        with self.lock:
            self.steps[step.length] = step
            self.open.append(step)
            self.bytes += 24 * vote.neighbors.ids.numel() + 8 * step.end_log_p_lm.numel()


class Recorder:
    """Records the generations of a processor, and keeps the latest.

    Args:
        ends: The model's tokens that end a text.
        candidates: How many of the likeliest tokens of each step are kept.
    """

    def __init__(self, ends: list[int], candidates: int) -> None:
        self._ends, self._candidates = ends, candidates
        self._recordings: list[Recording] = []
        self._lock = new_lock(self)

    def add(
        self, course: Course, input_ids: Tensor, vote: Vote, going_on: Tensor | None, *, first: bool
    ) -> None:
        """Adds a step; `first` says whether it is the first call about its forward pass."""
        recording: Recording | None = course.recording
        if recording is None or (first and not recording.goes_on(input_ids)):
            inputs = inputs_of(course.texts(input_ids))
            recording = course.recording = Recording(input_ids, inputs, self._ends)
            self._keep(recording)
        recording.add(input_ids, vote, going_on, self._candidates)

    def _keep(self, recording: Recording) -> None:
        """Adds a recording, and drops the oldest where there are too many."""
        with self._lock:
            recordings = self._recordings
            recordings.append(recording)
            while len(recordings) > _MOST_RECORDINGS or (
                len(recordings) > 1 and sum(other.bytes for other in recordings) > _MOST_BYTES
            ):
                del recordings[0]

    def fitting(
        self, sequences: Tensor, beam_indices: Tensor | None, course: Course | None = None
    ) -> Recording:
        """The recording of an output of `generate()`. That of `course` is looked at first.

        Raises:
            TraceError: when there is none.
        """
        latest = None if course is None else course.recording
        with self._lock:
            recordings = self._recordings[::-1]
        for recording in sorted(recordings, key=lambda recording: recording is not latest):
            device = recording.prompt.device
            beams = None if beam_indices is None else beam_indices.to(device)
            if recording.fits(sequences.to(device), beams):
                return recording
        raise TraceError(NO_RECORD)


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
    continued = (same_row & (chosen.unsqueeze(1) == step.tokens)).any(-1)
    return bool((continued | ~goes_on).all())
