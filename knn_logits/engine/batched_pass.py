"""One forward pass over several texts, each of its own length.

A batch of transformers keeps all rows at one length. Here each row has its columns from 0 on, at
its own positions, as it has alone: rows read different numbers of tokens, forget different numbers,
come and go. What a row reads past its tokens is padding, which no token attends to and which the
row's next tokens overwrite.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicLayer

# Columns are made for so many tokens at first, and then for twice as many.
_SMALLEST = 256


class RowsCache(Cache):
    """What a model has read of several texts.

    Attributes:
        lengths: The number of tokens of each text.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.lengths: list[int] = []
        self._states: list[tuple[Tensor, Tensor]] = []  # [rows, heads, columns, dim] a layer
        self._rows = slice(0, 0)  # those of the pass
        self._places: tuple[Tensor, Tensor] | None = None  # where the pass writes
        self._end = 0

    def open(self, rows: slice, tokens: int, device: torch.device) -> Tensor:
        """Makes room for a pass over some rows; returns their columns, int64 [rows, tokens]."""
        starts = torch.tensor(self.lengths[rows], device=device).unsqueeze(1)
        columns = starts + torch.arange(tokens, device=device)
        self._rows, self._end = rows, max(self.lengths[rows]) + tokens
        self._places = torch.arange(rows.start, rows.stop, device=device).unsqueeze(1), columns
        return columns

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Adds the states of a pass at a layer, [rows, heads, tokens, dim]; returns all."""
        assert self._places is not None
        rows, columns = self._places
        if layer_idx == len(self._states):
            empty = key_states[:0, :, :0], value_states[:0, :, :0]
            self._states.append(empty)
        fresh = key_states, value_states
        states = tuple(map(self._with_room, self._states[layer_idx]))
        for every, new in zip(states, fresh, strict=True):
            every[rows, :, columns] = new.transpose(1, 2)
        self._states[layer_idx] = states[0], states[1]
        read = [every[self._rows, :, : self._end] for every in states]
        return read[0], read[1]

    def _with_room(self, states: Tensor) -> Tensor:
        rows, heads, columns, width = states.shape
        if self._end <= columns and len(self.lengths) <= rows:
            return states
        columns = max(columns, _SMALLEST, 1 << (self._end - 1).bit_length())
        larger = states.new_zeros(max(rows, len(self.lengths)), heads, columns, width)
        larger[:rows, :, : states.shape[2]] = states
        return larger

    def remove(self, row: int) -> None:
        """Forgets a text, whose row the last one gets."""
        last = len(self.lengths) - 1
        for states in self._states:
            for every in states:
                if row < last < len(every):
                    every[row, :, : self.lengths[last]] = every[last, :, : self.lengths[last]]
        self.lengths[row] = self.lengths[last]
        self.lengths.pop()

    def get_seq_length(self, *_: int) -> int:
        """The columns before a pass."""
        return max(self.lengths[self._rows], default=0)


def read(
    model: Any, cache: RowsCache, rows: slice, texts: Sequence[Sequence[int]], scored: int
) -> Tensor:
    """Reads one or more further tokens of each of consecutive rows in one pass.

    Returns the scores of the last columns, [rows, scored, vocabulary]. A row that reads fewer
    tokens than another has padding behind them.
    """
    most, device = max(map(len, texts)), model.device
    ids = torch.tensor([[*text, *[text[-1]] * (most - len(text))] for text in texts], device=device)
    columns = cache.open(rows, most, device)
    seen = torch.arange(int(columns.max()) + 1, device=device) <= columns.unsqueeze(-1)
    mask = torch.zeros(seen.shape, dtype=model.dtype, device=device)
    mask = mask.masked_fill_(~seen, torch.finfo(model.dtype).min)
    lasts = torch.tensor([len(text) - 1 for text in texts], device=device).unsqueeze(1)
    arguments = {} if scored == most else {"logits_to_keep": scored}
    output = model(
        input_ids=ids,
        attention_mask=mask.unsqueeze(1),
        # Padding stays within the positions that the model has.
        position_ids=columns.minimum(columns[:, :1] + lasts),
        past_key_values=cache,
        use_cache=True,
        return_dict=True,
        **arguments,
    )
    for row, text in enumerate(texts, rows.start):
        cache.lengths[row] += len(text)
    logits: Tensor = output.logits[:, -scored:]
    return logits


_CHECKED: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
# Logits of a pass over several rows and of a row alone differ by rounding, less than this part.
_ROUNDING = 1e-3


def reads_rows(model: Any) -> bool:
    """Whether a model reads rows of different lengths as it reads each alone, in float32.

    It is tried, since a model may count positions or make its mask in its own way.
    """
    if model.dtype != torch.float32 or not hasattr(model, "_supports_sdpa"):
        return False
    parameters = inspect.signature(model.forward).parameters
    if not {"position_ids", "attention_mask", "past_key_values"} <= set(parameters):
        return False
    if model not in _CHECKED:
        try:
            _CHECKED[model] = _agrees(model)
        except Exception:  # whatever a model of its own kind raises here
            _CHECKED[model] = False
    return _CHECKED[model]


@torch.no_grad()
def _agrees(model: Any) -> bool:
    size = int(model.get_input_embeddings().weight.shape[0])
    texts = [[(7 * at + row) % size for at in range(6 + 5 * row)] for row in range(3)]
    cache = RowsCache()
    for row, text in enumerate(texts):
        cache.lengths.append(0)
        read(model, cache, slice(row, row + 1), [text[:-3]], 1)
    rounds = [[text[-3 : -3 + row] or text[-3:-2] for row, text in enumerate(texts)]]
    rounds.append(
        [text[cache.lengths[row] + len(rounds[0][row]) :] for row, text in enumerate(texts)]
    )
    for texts_of_round in rounds:
        columns = max(map(len, texts_of_round))
        scores = read(model, cache, slice(0, 3), texts_of_round, columns)
    for row, text in enumerate(texts):
        alone = model(input_ids=torch.tensor([text], device=model.device)).logits[0, -1]
        shared = scores[row, len(rounds[1][row]) - 1]
        if not torch.allclose(alone, shared, rtol=_ROUNDING, atol=_ROUNDING * float(alone.std())):
            return False
    return True
