"""Texts of several requests share the forward passes of a model, each in a thread of its own.

Each text chooses its tokens by itself, as it does alone. It waits until each of the others wants a
pass too, and one of them runs it. A text may come and go at any time. One thread runs at a time,
since several would mostly hand Python's lock to each other.

A batch of transformers keeps all rows at one length. Here each row has its columns from 0 on, at
its own positions, as it has alone. What a row reads past its tokens is padding, which no token
attends to and which the row's next tokens overwrite.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicLayer

from knn_logits.engine.hooks import StateCapture, taken_apart
from knn_logits.generation.arguments import arguments_for_drafts, can_draft
from knn_logits.generation.drafts import DraftedDecoding

_SMALLEST = 256  # columns are made for so many tokens at first, and then for twice as many
_ROUNDING = 1e-3  # logits of a pass over several rows and of a row alone differ by less


class RowsCache(Cache):
    """What a model has read of several texts; `lengths` are their numbers of tokens."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.lengths: list[int] = []
        self._states: list[list[Tensor]] = []  # keys and values, [rows, heads, columns, dim]
        self._rows, self._end = slice(0, 0), 0  # of the pass
        self._places = torch.empty(0), torch.empty(0)  # the rows and columns that it writes

    def open(self, rows: slice, tokens: int, device: torch.device) -> Tensor:
        """Begins a pass over some rows; returns their columns, int64 [rows, tokens]."""
        starts = torch.tensor(self.lengths[rows], device=device).unsqueeze(1)
        columns = starts + torch.arange(tokens, device=device)
        self._rows, self._end = rows, max(self.lengths[rows]) + tokens
        self._places = torch.arange(rows.start, rows.stop, device=device).unsqueeze(1), columns
        return columns

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Adds the states of a pass at a layer, [rows, heads, tokens, dim]; returns all."""
        fresh = key_states, value_states
        if layer_idx == len(self._states):
            self._states.append([states[:0, :, :0] for states in fresh])
        rows, columns = self._places
        kept = self._states[layer_idx] = list(map(self._with_room, self._states[layer_idx]))
        for states, new in zip(kept, fresh, strict=True):
            states[rows, :, columns] = new.transpose(1, 2)
        keys, values = (states[self._rows, :, : self._end] for states in kept)
        return keys, values

    def _with_room(self, states: Tensor) -> Tensor:
        rows, heads, columns, width = states.shape
        if self._end <= columns and len(self.lengths) <= rows:
            return states
        most = max(columns, _SMALLEST, 1 << (self._end - 1).bit_length())
        larger = states.new_zeros(max(rows, len(self.lengths)), heads, most, width)
        larger[:rows, :, :columns] = states
        return larger

    def remove(self, row: int) -> None:
        """Forgets a text, whose row the last one gets."""
        last = len(self.lengths) - 1
        for states in (states for layer in self._states for states in layer):
            if row < last < len(states):
                states[row, :, : self.lengths[last]] = states[last, :, : self.lengths[last]]
        self.lengths[row] = self.lengths[last]
        self.lengths.pop()

    def get_seq_length(self, *_: int) -> int:
        return max(self.lengths[self._rows], default=0)


def read(
    model: Any, cache: RowsCache, rows: slice, texts: Sequence[Sequence[int]], scored: int
) -> Tensor:
    """Reads further tokens of consecutive rows in one pass, each with padding behind them.

    Returns the scores of the last columns, [rows, scored, vocabulary].
    """
    most, device = max(map(len, texts)), model.device
    ids = torch.tensor([[*text, *[text[-1]] * (most - len(text))] for text in texts], device=device)
    columns = cache.open(rows, most, device)
    seen = torch.arange(int(columns.max()) + 1, device=device) <= columns.unsqueeze(-1)
    mask = torch.where(seen, 0.0, torch.finfo(model.dtype).min).to(model.dtype)
    lasts = torch.tensor([len(text) - 1 for text in texts], device=device).unsqueeze(1)
    output = model(
        input_ids=ids,
        attention_mask=mask.unsqueeze(1),
        # Padding stays within the positions that the model has.
        position_ids=columns.minimum(columns[:, :1] + lasts),
        past_key_values=cache,
        use_cache=True,
        return_dict=True,
        **({} if scored == most else {"logits_to_keep": scored}),
    )
    for row, text in enumerate(texts, rows.start):
        cache.lengths[row] += len(text)
    logits: Tensor = output.logits[:, -scored:]
    return logits


def reads_rows(model: Any) -> bool:
    """Tries whether a model reads rows of different lengths as it reads each alone, in float32."""
    if model.dtype != torch.float32 or not hasattr(model, "_supports_sdpa"):
        return False
    needed = {"position_ids", "attention_mask", "past_key_values"}
    try:
        return needed <= set(inspect.signature(model.forward).parameters) and _agrees(model)
    except Exception:  # whatever a model of its own kind raises here
        return False


@torch.no_grad()
def _agrees(model: Any) -> bool:
    words = int(model.get_input_embeddings().weight.shape[0])
    texts = [[(7 * at + row) % words for at in range(6 + 5 * row)] for row in range(3)]
    cache = RowsCache()
    for row, text in enumerate(texts):
        cache.lengths.append(0)
        read(model, cache, slice(row, row + 1), [text[:-3]], 1)
    # The rows read one, one and two tokens, and then two, two and one.
    for cuts in ([-2, -2, -1], [None] * 3):
        fresh = [text[cache.lengths[row] : cuts[row]] for row, text in enumerate(texts)]
        scores = read(model, cache, slice(0, 3), fresh, 2)
    for row, text in enumerate(texts):
        alone = model(input_ids=torch.tensor([text], device=model.device)).logits[0, -1]
        shared = scores[row, len(fresh[row]) - 1]
        if not torch.allclose(alone, shared, rtol=_ROUNDING, atol=_ROUNDING * float(alone.std())):
            return False
    return True


class SharedPasses:
    """The passes of a model that several threads share, where `possible`: greedy text in float32.

    `row` is the argument `passes` of `KNNLogitsProcessor.generate`.
    """

    def __init__(self, model: Any) -> None:
        self.possible = can_draft(model, torch.zeros(1, 1), {}) and reads_rows(model)
        self._model, self.cache = model, RowsCache()
        self._rows: list[Row] = []
        self._turn, self._count, self._coming = threading.Condition(), threading.Lock(), 0

    def generate(self, **settings: Any) -> Any:
        """Calls the model's `generate()` for a text in which no memory has a part."""
        arguments = arguments_for_drafts(self._model, settings)
        if arguments is None:
            return self._model.generate(**settings)
        streamer = settings.get("streamer")
        loop = DraftedDecoding(lambda *_: [], lambda _: None, streamer, lambda: self.row(None))
        return self._model.generate(**arguments, custom_generate=loop)

    @contextmanager
    def row(self, capture: StateCapture | None) -> Iterator[Row]:
        """A further text, in this thread. It runs alone within, but where it waits for a pass."""
        with self._count:
            self._coming += 1
        with self._turn:
            with self._count:
                self._coming -= 1
            row = Row(self, capture, len(self._rows))
            self._rows.append(row)
            self.cache.lengths.append(0)
            try:
                yield row
            finally:
                self.cache.remove(row.number)
                self._rows[row.number] = self._rows[-1]
                self._rows[row.number].number = row.number
                self._rows.pop()
                self._run_if_ready()
                if not self._rows:
                    self.cache = RowsCache()  # which frees its memory

    def wait(self, row: Row) -> None:
        """Waits until a row has been read."""
        if self.cache.lengths[row.number]:
            self._run_if_ready()
        else:
            self._run([row])  # a prompt is longer than what the others read
        while row.text is not None:
            self._turn.wait()

    def _run_if_ready(self) -> None:
        # Who comes gets its turn first, since a thread that waits for nobody would never yield it.
        if self._rows and not self._coming and all(row.text is not None for row in self._rows):
            self._run(self._rows)
            self._turn.notify_all()

    def _run(self, rows: Sequence[Row]) -> None:
        """Reads what consecutive rows want to read."""
        texts = [row.text or [] for row in rows]
        scored = max(map(len, texts)) if len(rows) > 1 else rows[0].scored
        within = slice(rows[0].number, rows[0].number + len(rows))
        starts, error = self.cache.lengths[within], None
        try:
            with taken_apart() as windows:
                logits = read(self._model, self.cache, within, texts, scored)
            for at, row in enumerate(rows):
                row.read(logits[at : at + 1], starts[at], windows, at, len(rows) == 1)
        except BaseException as raised:
            error = raised
        for row in rows:
            row.error, row.text = error, None


class Row:
    """A text that shares passes: its row in the cache, and the tokens that it wants to read."""

    cache = None  # a cache of transformers holds texts of one length

    def __init__(self, shared: SharedPasses, capture: StateCapture | None, number: int) -> None:
        self._shared, self._capture, self.number = shared, capture, number
        self.text: list[int] | None = None
        self.scored, self._start = 0, 0
        self._scores, self._states = torch.empty(0), torch.empty(0)
        self.error: BaseException | None = None

    def read(self, logits: Tensor, start: int, windows: Any, at: int, alone: bool) -> None:
        length = len(self.text or ())
        ends = logits.shape[1] if alone else length
        self._start, self._scores = start, logits[:, ends - self.scored : ends]
        if self._capture is not None:
            self._states = self._capture.of(windows)[at : at + 1, :length]

    def logits(self, fresh: Tensor, drafted: int) -> Tensor:
        self.text, self.scored = fresh[0].tolist(), drafted + 1
        self._shared.wait(self)
        if self.error is not None:
            raise self.error
        if self._capture is not None:
            self._capture.put(fresh, self._start, self._states, self)
        return self._scores

    def forget(self, tokens: int) -> None:
        self._shared.cache.lengths[self.number] -= tokens
