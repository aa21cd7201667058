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
from knn_logits_serve.answering import AnswerWriter
from knn_logits_serve.line import Turn
from knn_logits_serve.parts import End, Piece
from knn_logits_serve.request import GenerationRequest
from knn_logits_serve.served import Served
from knn_logits_serve.writing import PASSAGES, names_of, processor_of, write

# With kNN a text alone is drafted, which a batch is not. A batch of fewer rows takes longer than
# drafted texts one after another (`benchmarks/batches.py`).
LEAST_WITH_DRAFTS = 5
LEAST = 2
# A batch of longer texts would take much memory, and is not much faster than one after another.
LONGEST = 1024


def run(served: Served, turns: Sequence[Turn[GenerationRequest, Piece | End]]) -> None:
    """Writes the answers of one request, or of several that are alike."""
    if len(turns) == 1:
        turn = turns[0]
        write(served, turn.request, turn.tell, turn.deadline)
    else:
        _write_batch(served, turns)


def kind_of(served: Served, request: GenerationRequest) -> Hashable | None:
    """Returns what requests of one batch have in common; None for a request that is written alone.

    Sampled texts are written alone, since their noise depends on the position of each token. So are
    requests for several texts, for long ones, for probabilities and for penalties.
    """
    sampling, plain = request.sampling, request.logprobs is None and not request.echo
    if not plain or request.n > 1 or len(request.prompts) > 1 or not served.rows_are_alone:
        return None
    if sampling.temperature > 0 or sampling.presence or sampling.frequency or sampling.bias:
        return None
    ids = request.prompts[0].ids
    if len(ids) + request.new_tokens > LONGEST:
        return None
    if served.padding is None or served.padding in ids:
        return None  # A prompt with this token cannot be told from padding.
    settings = tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted(request.settings.items())
    )
    # A short prompt beside a long one would be mostly padding.
    return request.stores, settings, request.drawn, len(ids).bit_length()


def least_of(request: GenerationRequest) -> int:
    """Returns the fewest requests for which a batch is faster than one after another."""
    return LEAST_WITH_DRAFTS if request.stores else LEAST


class _Row:
    """A request in a batch."""

    def __init__(self, served: Served, turn: Turn[GenerationRequest, Piece | End]) -> None:
        self.request, self.turn = turn.request, turn
        self.prompt = turn.request.prompts[0]
        self.writer = AnswerWriter(served, turn.request, self.prompt, 0, turn.tell)
        self.ended = False

    def add(self, token: int, ends: set[int]) -> bool:
        """Takes a token, and returns whether the text ends with it."""
        self.writer.add(token)
        full = self.writer.written >= self.request.new_tokens
        return full or token in ends or self.writer.over or self.turn.deadline.over


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
            traces = knn.trace(
                input_ids, self._served.tokenizer, max_neighbors=PASSAGES, rows=[number]
            )
            trace, names = traces[0], names_of(knn, row.request)
        row.turn.tell(row.writer.end(token, trace, names))
        row.turn.finish()


def _write_batch(served: Served, turns: Sequence[Turn[GenerationRequest, Piece | End]]) -> None:
    rows = [_Row(served, turn) for turn in turns]
    request = rows[0].request
    longest = max(len(row.prompt.ids) for row in rows)
    ids = torch.full((len(rows), longest), served.padding or 0)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        first = longest - len(row.prompt.ids)
        ids[number, first:] = torch.tensor(row.prompt.ids)
        mask[number, first:] = 1
    with ExitStack() as stack:
        knn, generate = None, served.model.generate
        if request.stores:
            knn = stack.enter_context(processor_of(served, request, served.memory_of(request)))
            generate = knn.generate
        generate(
            input_ids=ids.to(served.model.device),
            attention_mask=mask.to(served.model.device),
            **served.generation,
            max_new_tokens=max(row.request.new_tokens for row in rows),
            do_sample=False,
            num_beams=1,
            stopping_criteria=[_Rows(served, rows, knn)],
        )
