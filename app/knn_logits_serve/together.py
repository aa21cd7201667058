"""Writes several requests in one batch, where each gets what it would have got alone.

A greedy text depends on its own row of a batch only. So requests with the same datastores and
settings share each forward pass, each search and each vote. A row ends by itself: at its end token,
at its stop text, at its number of tokens, or when its client goes away.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from knn_logits import KNNLogitsProcessor
from knn_logits_serve.asked import Asked
from knn_logits_serve.line import Turn
from knn_logits_serve.served import Served
from knn_logits_serve.telling import Telling
from knn_logits_serve.told import End, Piece
from knn_logits_serve.writing import PASSAGES, names_of, processor_of, write

# With kNN a text alone is drafted, which a batch is not. A batch of fewer rows takes longer than
# drafted texts one after another (`benchmarks/batches.py`).
LEAST_WITH_DRAFTS = 5
LEAST = 2
# A batch of longer texts would take much memory, and is not much faster than one after another.
LONGEST = 1024


def run(served: Served, turns: Sequence[Turn[Asked, Piece | End]]) -> None:
    """Writes the answers of one request, or of several that are alike."""
    if len(turns) == 1:
        one = turns[0]
        write(served, one.asked, one.tell, one.deadline)
    else:
        _write_batch(served, turns)


def kind_of(served: Served, asked: Asked) -> Hashable | None:
    """Returns what requests of one batch have in common; None for a request that is written alone.

    Sampled texts are written alone, since their noise depends on the position of each token. So are
    requests for several texts, for long ones, for probabilities and for penalties.
    """
    sampling, plain = asked.sampling, asked.logprobs is None and not asked.echo
    if not plain or asked.n > 1 or len(asked.prompts) > 1 or not served.rows_are_alone:
        return None
    if sampling.temperature > 0 or sampling.presence or sampling.frequency or sampling.bias:
        return None
    ids = asked.prompts[0].ids
    if len(ids) + asked.new_tokens > LONGEST:
        return None
    if served.padding is None or served.padding in ids:
        return None  # A prompt with this token cannot be told from padding.
    settings = tuple(
        (name, tuple(one) if isinstance(one, list) else one)
        for name, one in sorted(asked.settings.items())
    )
    # A short prompt beside a long one would be mostly padding.
    return asked.stores, settings, asked.drawn, len(ids).bit_length()


def least_of(asked: Asked) -> int:
    """Returns the fewest requests for which a batch is faster than one after another."""
    return LEAST_WITH_DRAFTS if asked.stores else LEAST


class _Row:
    """A request in a batch."""

    def __init__(self, served: Served, turn: Turn[Asked, Piece | End]) -> None:
        self.asked, self.turn = turn.asked, turn
        self.prompt = turn.asked.prompts[0]
        self.telling = Telling(served, turn.asked, self.prompt, 0, turn.tell)
        self.ended = False

    def add(self, token: int, ends: set[int]) -> bool:
        """Takes a token, and returns whether the text ends with it."""
        self.telling.add(token)
        full = self.telling.written >= self.asked.new_tokens
        return full or token in ends or self.telling.over or self.turn.deadline.over


class _Rows(StoppingCriteria):
    """Passes the tokens of a batch on to its requests, and ends each row by itself."""

    def __init__(self, served: Served, rows: list[_Row], knn: KNNLogitsProcessor | None) -> None:
        self._served, self._rows, self._knn = served, rows, knn

    def __call__(self, input_ids: Tensor, _: Any, **__: Any) -> Tensor:
        for number, (row, token) in enumerate(
            zip(self._rows, input_ids[:, -1].tolist(), strict=True)
        ):
            if not row.ended and row.add(token, self._served.ends):
                row.ended = True
                self._end(row, number, token, input_ids)
        return torch.tensor([row.ended for row in self._rows], device=input_ids.device)

    def _end(self, row: _Row, number: int, token: int, input_ids: Tensor) -> None:
        trace, names, knn = None, {}, self._knn
        if knn is not None and not row.turn.deadline.cancelled:
            found = knn.trace(
                input_ids, self._served.tokenizer, max_neighbors=PASSAGES, rows=[number]
            )
            trace, names = found[0], names_of(knn, row.asked)
        row.turn.tell(row.telling.end(token, trace, names))
        row.turn.finish()


def _write_batch(served: Served, turns: Sequence[Turn[Asked, Piece | End]]) -> None:
    rows = [_Row(served, one) for one in turns]
    asked = rows[0].asked
    longest = max(len(row.prompt.ids) for row in rows)
    ids = torch.full((len(rows), longest), served.padding or 0)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        first = longest - len(row.prompt.ids)
        ids[number, first:] = torch.tensor(row.prompt.ids)
        mask[number, first:] = 1
    with ExitStack() as stack:
        knn, generate = None, served.model.generate
        if asked.stores:
            knn = stack.enter_context(processor_of(served, asked, served.memory_of(asked)))
            generate = knn.generate
        generate(
            input_ids=ids.to(served.model.device),
            attention_mask=mask.to(served.model.device),
            **served.generation,
            max_new_tokens=max(row.asked.new_tokens for row in rows),
            do_sample=False,
            num_beams=1,
            stopping_criteria=[_Rows(served, rows, knn)],
        )
