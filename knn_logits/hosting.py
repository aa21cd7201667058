"""Names that pages, servers and other hosts of a memory use beside those of `knn_logits`.

`Limits` bounds work that somebody else asks for: how much text, how many tokens, how much time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from knn_logits.ask.answer import PassageEffect
from knn_logits.engine.forward import use_fastest_dtype
from knn_logits.engine.hooks import CACHE_NAME
from knn_logits.engine.pairs import context_length
from knn_logits.engine.passages import heading_name, language_of, sentences_of
from knn_logits.engine.pieces import Pieces
from knn_logits.engine.tokens import chat_ids
from knn_logits.errors import LimitError
from knn_logits.evidence.records import DocumentShare, NeighborTrace, SequenceTrace
from knn_logits.evidence.sources import main_sources
from knn_logits.generation.drafts import Passes, can_forget
from knn_logits.measure.bench import overlap_words
from knn_logits.mixture.vote import Vote
from knn_logits.progress import Progress
from knn_logits.settings.declaration import Setting
from knn_logits.settings.registry import check_settings, settings_for, settings_line

__all__ = [
    "Deadline",
    "DocumentShare",
    "Limits",
    "NeighborTrace",
    "PassageEffect",
    "Pieces",
    "PromptReader",
    "SequenceTrace",
    "Setting",
    "Vote",
    "chat_ids",
    "check_settings",
    "context_length",
    "heading_name",
    "language_of",
    "main_sources",
    "overlap_words",
    "sentences_of",
    "settings_for",
    "settings_line",
    "use_fastest_dtype",
]

# The numbers of tokens of a prompt's pieces, the longest first.
_PIECES = 512, 64


@dataclass(frozen=True)
class Limits:
    """The most that one request may ask for.

    Attributes:
        prompt_tokens: Number of tokens of a prompt, or of a text to explain.
        new_tokens: Number of tokens to write.
        text_bytes: Bytes of text to build a datastore from, or to evaluate.
        seconds: Time that one request may take.
    """

    prompt_tokens: int = 512
    new_tokens: int = 256
    text_bytes: int = 400_000
    seconds: float = 60.0

    def check(
        self,
        *,
        prompt_tokens: int = 0,
        new_tokens: int = 0,
        text_bytes: int = 0,
        context: int | None = None,
    ) -> None:
        """Refuses a request that asks for too much.

        Args:
            prompt_tokens: Number of tokens given.
            new_tokens: Number of tokens wanted.
            text_bytes: Bytes of text given.
            context: Number of tokens that the model can read, prompt and answer together.

        Raises:
            LimitError: when a limit is exceeded. The message says which one, and what is allowed.
        """
        for name, amount, most in (
            ("the text has {} tokens", prompt_tokens, self.prompt_tokens),
            ("{} new tokens are asked for", new_tokens, self.new_tokens),
            ("the text has {} bytes", text_bytes, self.text_bytes),
        ):
            if amount > most:
                raise LimitError(f"{name.format(f'{amount:,}')}; the limit is {most:,}: shorten it")
        if context is not None and prompt_tokens + new_tokens > context:
            raise LimitError(
                f"{prompt_tokens:,} tokens of text plus {new_tokens:,} new tokens exceed the "
                f"model's context of {context:,}: shorten either"
            )

    def deadline(self, times: float = 1) -> Deadline:
        """The time that a request has, from now on; one that reads a long text has it `times`."""
        return Deadline(times * self.seconds)


class Deadline(StoppingCriteria):
    """Ends work when its time is up, or when it is cancelled.

    As `generate(stopping_criteria=[deadline])` it ends the text. A build or an evaluation gets it
    as its progress callback, which then raises `LimitError`:

        build_datastore(..., progress=deadline.watch())

    Args:
        seconds: Time from now on; None sets no limit.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._seconds = seconds
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Ends the work, from any thread."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled.is_set()

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end

    @property
    def over(self) -> bool:
        """Whether the work has to end, for either reason."""
        return self.cancelled or self.expired

    def check(self) -> None:
        """Raises when the work has to end.

        Raises:
            LimitError: when the time is up or the work was cancelled. The message says which.
        """
        if self.cancelled:
            raise LimitError("the work was stopped; nothing was saved")
        if self.expired:
            raise LimitError(
                f"this exceeded the time limit of {self._seconds:g} seconds: use less text"
            )

    def watch(self, progress: Progress | None = None) -> Progress:
        """Makes a progress callback that raises `LimitError` when the work has to end.

        Args:
            progress: A callback that receives every report as well; None for none.
        """

        def watched(phase: str, done: int, total: int | None) -> None:
            self.check()
            if progress is not None:
                progress(phase, done, total)

        return watched

    def __call__(self, input_ids: Tensor, _: Any, **__: Any) -> Tensor:
        """Answers `generate()`, which asks after each token whether to end.

        Args:
            input_ids: int64 [rows, length].

        Returns:
            bool [rows], whether each row ends here.
        """
        return torch.full((input_ids.shape[0],), self.over, device=input_ids.device)


class PromptReader:
    """Reads prompts one after another, and what one shares with the last only once.

        with reader.read(ids) as inputs:
            output = model.generate(**inputs, max_new_tokens=24)

    A prompt is read in pieces, and whole pieces are kept. In half precision a pass over other
    tokens rounds otherwise: without pieces a text would depend on the prompt before it.

    Args:
        model: A causal language model. One thread at a time uses it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._pieces: list[list[int]] = []
        self._cache: Any = None

    @contextmanager
    def read(self, ids: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Reads a prompt but for its last piece.

        Args:
            ids: Its tokens, at least one.

        Yields:
            The arguments with which `generate()` goes on. If it fails, nothing is kept.
        """
        prompt = torch.tensor([ids], device=self._model.device)
        inputs = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
        pieces = _pieces(ids)
        if len(pieces) == 1 or not can_forget(self._model):
            yield inputs
            return
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(self._pieces, pieces, strict=False))
        shared = [piece for piece, _ in pairs][: len(pieces) - 1]
        kept = {CACHE_NAME: self._cache} if shared else {}
        self._pieces, self._cache = [], None
        passes = Passes(self._model, kept, prompt)
        passes.forget(passes.read - sum(map(len, shared)))
        for piece in pieces[len(shared) : -1]:
            with torch.no_grad():
                scores = passes.logits(prompt.new_tensor([piece]), 0)
            if scores is None:  # a few old models have no cache
                yield inputs
                return
        yield inputs | {CACHE_NAME: passes.cache}
        self._pieces, self._cache = pieces, passes.cache


def _pieces(ids: Sequence[int]) -> list[list[int]]:
    """Cuts a prompt. Where a piece ends does not depend on what follows soon after."""
    start, pieces = 0, []
    for size in _PIECES:
        while len(ids) - start > size:
            pieces.append([*ids[start : start + size]])
            start += size
    return [*pieces, [*ids[start:]]]
