"""Several generations share the forward passes of one model, each in a thread of its own.

Each text chooses its tokens by itself, as it does alone: its processors, drafts, seed and criteria
know nothing of the others. It only waits until each of the others wants a pass too, and one of them
runs it. A text may come and go at any time. One thread runs at a time, since several would mostly
hand Python's lock to each other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from knn_logits.engine.batched_pass import RowsCache, read, reads_rows
from knn_logits.engine.hooks import StateCapture, taken_apart
from knn_logits.generation.arguments import arguments_for_drafts, can_draft
from knn_logits.generation.drafts import DraftedDecoding


class SharedPasses:
    """The passes of a model that several calls of `KNNLogitsProcessor.generate` share.

        passes = SharedPasses(model)
        # in each of several threads:
        knn.generate(**inputs, passes=passes)
        passes.generate(**inputs)  # the model alone

    Texts are shared that can be drafted, in float32. Each is what it would be alone; but
    `do_sample=True` draws from PyTorch's generator, which all threads have in common.

    Args:
        model: The model.

    Attributes:
        possible: Whether the model can read several texts in one pass.
    """

    def __init__(self, model: Any) -> None:
        self.possible = can_draft(model, torch.zeros(1, 1), {}) and reads_rows(model)
        self._model, self._cache = model, RowsCache()
        self._turn = threading.Condition()
        self._rows: list[Row] = []
        self._coming, self._count = 0, threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    def generate(self, **settings: Any) -> Any:
        """Calls the model's `generate()` for a text in which no memory has a part.

        Args:
            settings: Arguments of `generate()`.

        Returns:
            The result of `generate()`.
        """
        arguments = arguments_for_drafts(self._model, settings) if self.possible else None
        if arguments is None:
            return self._model.generate(**settings)
        loop = DraftedDecoding(
            lambda *_: [], lambda _: None, settings.get("streamer"), partial(self.row, None)
        )
        return self._model.generate(**arguments, custom_generate=loop)

    @contextmanager
    def row(self, capture: StateCapture | None) -> Iterator[Row]:
        """A further text, in this thread. It runs alone within, but where it waits for a pass."""
        self._note(1)
        with self._turn:
            self._note(-1)
            row = Row(self, capture, len(self._rows))
            self._rows.append(row)
            self._cache.lengths.append(0)
            try:
                yield row
            finally:
                self._cache.remove(row.number)
                self._rows[row.number] = self._rows[-1]
                self._rows[row.number].number = row.number
                self._rows.pop()
                self._run_if_ready()

    def forget(self, row: Row, tokens: int) -> None:
        """Removes a row's latest tokens."""
        self._cache.lengths[row.number] -= tokens

    def wait(self, row: Row) -> None:
        """Waits until a row has been read."""
        if self._cache.lengths[row.number]:
            self._run_if_ready()
        else:
            self._run([row])  # a prompt is longer than what the others read
        while row.text is not None:
            self._turn.wait()

    def _note(self, coming: int) -> None:
        with self._count:
            self._coming += coming

    def _run_if_ready(self) -> None:
        # Who comes gets its turn first, since a thread that waits for nobody would never yield it.
        if self._rows and not self._coming and all(row.text is not None for row in self._rows):
            self._run(self._rows)
            self._turn.notify_all()

    def _run(self, rows: Sequence[Row]) -> None:
        """Reads what consecutive rows want to read."""
        texts = [row.text or [] for row in rows]
        scored = max(map(len, texts)) if len(rows) > 1 else rows[0].scored
        first = rows[0].number
        error: BaseException | None = None
        logits = torch.empty(0)
        states: list[Tensor | None] = []
        starts = [self._cache.lengths[row.number] for row in rows]
        try:
            within = slice(first, first + len(rows))
            with taken_apart() as windows:
                logits = read(self._model, self._cache, within, texts, scored)
            states = [
                None if row.capture is None else row.capture.of(windows)[at : at + 1]
                for at, row in enumerate(rows)
            ]
        except BaseException as raised:
            error = raised
        for at, row in enumerate(rows):
            row.error, row.text = error, None
            if error is None:
                length, state = len(texts[at]), states[at]
                row.start, row.read = starts[at], texts[at]
                row.states = None if state is None else state[:, :length]
                ends = length if len(rows) > 1 else logits.shape[1]
                row.scores = logits[at : at + 1, ends - row.scored : ends]


class Row:
    """A text that shares passes with others.

    Attributes:
        number: Its row in the cache.
        text: What it wants to read; None once it was read.
    """

    def __init__(self, shared: SharedPasses, capture: StateCapture | None, number: int) -> None:
        self._shared, self.capture, self.number = shared, capture, number
        self.text: list[int] | None = None
        self.scored, self.start = 0, 0
        self.read: list[int] = []
        self.scores = torch.empty(0)
        self.states: Tensor | None = None
        self.error: BaseException | None = None
        # A cache of transformers holds texts of one length.
        self.cache = None
        self.possible = True

    def logits(self, fresh: Tensor, drafted: int) -> Tensor:
        """Reads tokens, int64 [1, tokens], and scores the last `1 + drafted` of them."""
        self.text, self.scored = fresh[0].tolist(), drafted + 1
        self._shared.wait(self)
        if self.error is not None:
            raise self.error
        if self.capture is not None and self.states is not None:
            self.capture.put(fresh, self.start, self.states, self)
        return self.scores

    def forget(self, tokens: int) -> None:
        """Removes the latest tokens from the cache."""
        self._shared.forget(self, tokens)
