"""`explain` makes the same trace for an existing text, without generating."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from knn_logits.arrays import Array
from knn_logits.corpus.documents import checked_text
from knn_logits.engine.compatibility import check_tokenizer, pair_tokenizer
from knn_logits.engine.forward import (
    evaluating,
    input_device,
    key_states_and_logits,
    windows_batch,
)
from knn_logits.engine.pairs import PairTokenizer
from knn_logits.engine.pieces import InnerText, parts_of, token_texts
from knn_logits.engine.tokens import text_ids
from knn_logits.engine.windows import plan
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.evidence.assemble import MAX_NEIGHBORS, marked, trace_token
from knn_logits.evidence.quotation import Quotations
from knn_logits.evidence.trace import (
    DocumentShare,
    Familiarity,
    Rival,
    SequenceTrace,
    TokenTrace,
    Trace,
)
from knn_logits.mixture.memory import Memory, MemorySettings
from knn_logits.mixture.vote import Vote
from knn_logits.search.combined import Stores
from knn_logits.search.neighbors import hits
from knn_logits.settings.config import whole_number

# Called with the votes at some places of a text, and the tokens that stand there.
OnVote: TypeAlias = Callable[[Vote, list[int]], None]

_QUERIES_AT_ONCE = 256


def explain(
    model: nn.Module,
    tokenizer: Any,
    datastore: Memory | Stores,
    text: str,
    *,
    source: str | None = None,
    max_neighbors: int = MAX_NEIGHBORS,
    candidates: int = 0,
    on_vote: OnVote | None = None,
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
        text: A text of at least two tokens. For an encoder-decoder model it is a target.
        source: The text that an encoder-decoder model reads, without prefix.
        max_neighbors: The most passages to keep for each token.
        candidates: How many of the likeliest tokens the trace names at each token.
        on_vote: Called with the votes at some places in a row, one a row, and with the tokens that
            stand there.
        settings: `k`, `lmbda`, `temperature`, `weights`, `device`, `retomaton` and so on, which
            `Memory` explains. The default of each is the datastore's setting for scoring.

    Returns:
        A trace of one sequence. Its prompt is the first token, which nothing predicts. A target
        has no prompt and is traced from its first token on.

    Raises:
        ConfigError: when an encoder-decoder model gets no source, or a causal model gets one.
        CorpusError: when the text is shorter than two tokens.
        MismatchError: when model or tokenizer are not the datastore's.
    """
    checked_text(text, "the text")
    if source is not None:
        checked_text(source, "the source")
    max_neighbors = whole_number("max_neighbors", max_neighbors, 0)
    candidates = whole_number("candidates", candidates, 0)
    memory = Memory.of(model, datastore, scoring=True, **settings)
    check_tokenizer(tokenizer, memory.stores[0])
    pairs = pair_tokenizer(model, tokenizer, memory.stores[0])
    read = _source_ids(pairs, source)
    ids = pairs.targets([text])[0] if pairs else text_ids(tokenizer, text)
    if len(ids) < 2:
        raise CorpusError(
            "the text has fewer than two tokens, so there is nothing to explain; give a longer text"
        )
    words = token_texts(tokenizer, ids)
    windows = memory.stores[0].manifest.windows
    where = input_device(model)
    all_ids = torch.tensor([ids], device=where)
    tokens: list[TokenTrace] = []
    found: list[bool] = []
    quotations = None
    if pairs is None and all(one.manifest.learned is None for one in memory.stores):
        quotations = Quotations(memory.stores)
    with evaluating(model):
        for window in plan([0], [len(ids)], windows.window, windows.stride):
            part = [replace(window, source=read)]
            inputs = windows_batch(np.array(ids), part, where)
            states, logits = key_states_and_logits(model, memory.location, inputs)
            first = window.start + window.skip + 1
            scores = logits[0, window.skip :].float()
            targets = torch.tensor(ids[first : first + window.entries], device=scores.device)
            log_p_lm = torch.log_softmax(scores, dim=-1)
            tokens += _traced(
                states[0, window.skip :],
                all_ids[:, : first + window.entries - 1],
                log_p_lm,
                targets,
                words[first : first + window.entries],
                tokenizer,
                memory,
                max_neighbors,
                candidates,
                found,
                on_vote,
                quotations,
            )
    if quotations is not None:
        tokens = _contradicted(tokens, np.array(ids), quotations, memory, tokenizer)
    known = None
    if memory.expected_hits is not None:
        known = Familiarity(sum(found), len(found), memory.expected_hits)
    sequence = SequenceTrace("" if pairs else words[0], marked(tokens, tokenizer), known)
    return Trace([sequence], memory.names)


def _source_ids(pairs: PairTokenizer | None, source: str | None) -> Array | None:
    if pairs is None:
        if source is not None:
            raise ConfigError("a causal model does not read sources: leave out --source")
        return None
    if source is None or not source.strip():
        raise ConfigError(
            "an encoder-decoder model needs a source: give --source (source= in Python)"
        )
    return pairs.sources([source])[0]


def _traced(
    states: Tensor,
    ids: Tensor,
    log_p_lm: Tensor,
    targets: Tensor,
    words: list[str],
    tokenizer: Any,
    memory: Memory,
    max_neighbors: int,
    candidates: int,
    known: list[bool],
    on_vote: OnVote | None,
    quotations: Quotations | None,
) -> list[TokenTrace]:
    tokens = []
    chosen = log_p_lm.gather(-1, targets[:, None])[:, 0]
    best, likeliest = (one.tolist() for one in log_p_lm.max(dim=-1))
    all_ids = [*ids[0].tolist(), int(targets[-1])]
    read, first = np.array(all_ids), len(all_ids) - len(targets)
    for start in range(0, len(states), _QUERIES_AT_ONCE):
        part = slice(start, start + _QUERIES_AT_ONCE)
        end = ids.shape[1] - len(states) + min(part.stop, len(states))
        neighbors = memory.neighbors(states[part].unsqueeze(0), ids[:, :end], log_p_lm[part])
        searched = neighbors.searched
        hit = hits(neighbors, targets[part]).cpu()
        known += (hit if searched is None else hit[searched]).tolist()
        vote = memory.vote(neighbors, log_p_lm[part])
        if on_vote is not None:
            on_vote(vote, targets[part].tolist())
        found = vote.candidates(candidates) if candidates else None
        neighbors, weights = vote.neighbors.to("cpu"), vote.log_weights.cpu()
        lmbdas = vote.lmbdas.tolist()
        for row in range(neighbors.rows):
            place, one = start + row, slice(row, row + 1)
            if quotations is not None and lmbdas[row] > 0.0:
                quotations.look(read, first + place, neighbors[one], weights[one])
            tokens.append(
                trace_token(
                    words[place],
                    int(targets[place]),
                    neighbors[one],
                    weights[one],
                    lmbdas[row],
                    float(chosen[place]),
                    tokenizer,
                    memory.retriever.locate,
                    memory.name_of,
                    max_neighbors,
                    around=(all_ids[: first + place], all_ids[first + place + 1 :]),
                    likeliest=(likeliest[place], best[place]),
                    candidates=found[row] if found is not None else (),
                    near_within=memory.near_within,
                )
            )
    return tokens


def _contradicted(
    tokens: list[TokenTrace],
    ids: Array,
    quotations: Quotations,
    memory: Memory,
    tokenizer: Any,
) -> list[TokenTrace]:
    """Notes which words of the text a passage has, too, and in whose place one has others."""
    first = len(ids) - len(tokens)
    tokens = list(tokens)
    for one in quotations.differences(ids, InnerText(tokenizer, ids.tolist())):
        store = memory.stores[one.store]
        words, before = store.tokens[one.begin : one.end].tolist(), ids[: one.first].tolist()
        document = store.documents[store.documents.at_token(one.begin)]
        # A document's first token is not an entry.
        begin = np.array([max(one.begin, document.first + 1)])
        p = quotations.p_knn(one.first, words[0])
        by_memory = Rival(
            parts_of(tokenizer, [*before, *words], (len(before),))[1],
            p,
            DocumentShare(memory.name_of(store), document.id, document.title, document.uri, p),
            int(store.contexts.entries_of(begin, np.ones(1, np.int64))[0]),
        )
        for place in range(max(one.first, first) - first, one.last - first):
            # White space in a token of its own is no word.
            if tokens[place].token.strip():
                tokens[place] = replace(tokens[place], by_memory=by_memory)
    for place in quotations.supported:
        tokens[place - first] = replace(tokens[place - first], verbatim=True)
    return tokens
