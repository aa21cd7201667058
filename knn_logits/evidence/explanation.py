"""`explain` makes the same trace for an existing text, without generating."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from knn_logits.arrays import Array
from knn_logits.corpus.documents import checked_text
from knn_logits.engine.compatibility import check_tokenizer, pair_tokenizer
from knn_logits.engine.forward import evaluating, input_device, key_states_and_logits
from knn_logits.engine.pairs import PairTokenizer
from knn_logits.engine.pieces import token_texts
from knn_logits.engine.tokens import text_ids
from knn_logits.engine.windows import plan, windows_batch
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.evidence.assemble import AROUND, MAX_NEIGHBORS, Mixed, Tracer
from knn_logits.evidence.recording import Chosen
from knn_logits.evidence.records import SequenceTrace, TokenTrace
from knn_logits.evidence.trace import Trace
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.presets import MemorySettings
from knn_logits.mixture.vote import Vote, largest
from knn_logits.progress import Progress, no_progress
from knn_logits.search.combined import Stores
from knn_logits.settings.config import whole_number

_QUERIES_AT_ONCE = 256


def explain(
    model: nn.Module,
    tokenizer: Any,
    datastore: Memory | Stores,
    text: str | list[int],
    *,
    source: str | None = None,
    max_neighbors: int = MAX_NEIGHBORS,
    candidates: int = 0,
    progress: Progress = no_progress,
    **settings: Unpack[MemorySettings],
) -> Trace:
    """Traces which passages of a datastore support each word of a text.

    The text is read in the datastore's windows. The probability of each token is the mixture's,
    given the tokens before it. If the text quotes a passage but for some words, the memory
    contradicts these words and says those of the passage.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A `Memory` of this model, or one or several datastores or their folders. Several
            are searched as one.
        text: A text of at least two tokens, or its ids. For an encoder-decoder model it is a
            target, as text.
        source: The text that an encoder-decoder model reads, without prefix.
        max_neighbors: The most passages to keep for each token.
        candidates: How many of the likeliest tokens the trace names at each token.
        progress: A callback that is told how many of the tokens are traced.
        settings: `k`, `lmbda`, `temperature`, `device`, `retomaton` and so on, which
            `Memory` explains. The default of each is the datastore's setting for scoring.

    Returns:
        A trace of one sequence. Its prompt is the first token, which nothing predicts. A target
        has no prompt and is traced from its first token on.

    Raises:
        ConfigError: when an encoder-decoder model gets no source, or a causal model gets one.
        CorpusError: when the text is shorter than two tokens.
        MismatchError: when model or tokenizer are not the datastore's.
    """
    if not isinstance(text, list) or not all(isinstance(token, int) for token in text):
        checked_text(text, "the text")
    if source is not None:
        checked_text(source, "the source")
    max_neighbors = whole_number("max_neighbors", max_neighbors, 0)
    candidates = whole_number("candidates", candidates, 0)
    memory = Memory.of(model, datastore, **settings)
    check_tokenizer(tokenizer, memory.stores[0])
    pairs = pair_tokenizer(model, tokenizer, memory.stores[0])
    source_ids = _source_ids(pairs, source)
    if isinstance(text, list):
        ids = text
    else:
        ids = pairs.targets([text])[0] if pairs else text_ids(tokenizer, text)
    if len(ids) < 2:
        raise CorpusError(
            "the text has fewer than two tokens, so there is nothing to explain; use a longer text"
        )
    reading = _Reading(Tracer(memory, tokenizer, max_neighbors), ids, candidates, progress)
    windows, device = memory.stores[0].manifest.windows, input_device(model)
    with evaluating(model):
        for window in plan([0], [len(ids)], windows.window, windows.stride):
            part = [replace(window, source=source_ids)]
            inputs = windows_batch(np.array(ids), part, device)
            states, logits = key_states_and_logits(model, memory.location, inputs)
            scores = logits[0, window.skip :].float()
            reading.add(states[0, window.skip :], torch.log_softmax(scores, dim=-1))
    return Trace([reading.sequence(opening=pairs is None)], memory.names)


def _source_ids(pairs: PairTokenizer | None, source: str | None) -> Array | None:
    if pairs is None:
        if source is not None:
            raise ConfigError("a causal model has no source input: remove --source")
        return None
    if source is None or not source.strip():
        raise ConfigError(
            "an encoder-decoder model needs a source: pass --source (source= in Python)"
        )
    return pairs.sources([source])[0]


class _Reading:
    """The tokens of a text, which are traced from the second on while the text is read."""

    def __init__(self, tracer: Tracer, ids: list[int], candidates: int, progress: Progress) -> None:
        self._tracer, self._ids, self._candidates = tracer, ids, candidates
        self._words, self._progress = token_texts(tracer.tokenizer, ids), progress
        self._tokens: list[TokenTrace] = []
        self._quotations = tracer.quotations(ids)

    def add(self, states: Tensor, log_p_lm: Tensor) -> None:
        """Traces the next tokens, given the states before them, [tokens, dim]."""
        memory, first = self._tracer.memory, len(self._tokens) + 1
        text = torch.tensor([self._ids], device=states.device)
        for start in range(0, len(states), _QUERIES_AT_ONCE):
            queries = states[start : start + _QUERIES_AT_ONCE].unsqueeze(0)
            scores = log_p_lm[start : start + _QUERIES_AT_ONCE]
            begin, end = first + start, first + start + len(scores)
            neighbors = memory.neighbors(queries, text[:, : end - 1])
            targets = text[0, begin:end].to(scores.device)
            vote = memory.vote(neighbors, scores)
            self._add(begin, vote, scores.gather(-1, targets[:, None])[:, 0])

    def _add(self, begin: int, vote: Vote, log_p_lm: Tensor) -> None:
        candidates = vote.candidates(self._candidates) if self._candidates else None
        best, likeliest = (values.tolist() for values in largest(vote.log_p_lm))
        neighbors, weights = vote.neighbors.to("cpu"), vote.log_weights.cpu()
        ids = np.array(self._ids)
        chosen_ids = torch.tensor(self._ids[begin : begin + len(weights)])
        mixed = Mixed.of(weights, neighbors.values, chosen_ids, log_p_lm.cpu(), vote.lmbdas.cpu())
        log_p_chosen = log_p_lm.tolist()
        for row, lmbda in enumerate(vote.lmbdas.tolist()):
            at, part = begin + row, slice(row, row + 1)
            self._progress("explaining", at, len(ids))
            chosen = Chosen(
                self._ids[at],
                neighbors[part],
                weights[part],
                lmbda,
                log_p_chosen[row],
                (likeliest[row], best[row]),
                candidates[row] if candidates is not None else (),
            )
            if self._quotations is not None and lmbda > 0.0:
                self._quotations.look(ids, at, chosen.neighbors, chosen.log_weights)
            before, after = self._ids[max(0, at - AROUND) : at], self._ids[at + 1 : at + AROUND]
            token = self._tracer.token(self._words[at], chosen, before, after, mixed[row])
            self._tokens.append(token)

    def sequence(self, *, opening: bool) -> SequenceTrace:
        """The whole trace. Its prompt is the text's first token, where that is text."""
        sequence = SequenceTrace(self._words[0] if opening else "", self._tokens)
        if self._quotations is None:
            return sequence
        return self._tracer.compared(sequence, self._ids, self._quotations)
