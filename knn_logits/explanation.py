"""`explain`: the same trace for a text that exists already, without generating."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from knn_logits.capture.forward import (
    evaluating,
    input_device,
    key_states_and_logits,
    windows_batch,
)
from knn_logits.combined import Stores, open_retriever, open_stores
from knn_logits.compatibility import check_model, check_tokenizer, locate_key, pair_tokenizer
from knn_logits.config import SearchSettings, whole_number
from knn_logits.corpus.documents import checked_text
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.gating.gate import Gate, rows_to_search, weigh_rows
from knn_logits.neighbors import Array, Neighbors
from knn_logits.retrieval import Retriever
from knn_logits.settings import scoring_settings
from knn_logits.text.pairs import PairTokenizer
from knn_logits.trace.assemble import MAX_NEIGHBORS, token_texts, trace_token
from knn_logits.trace.trace import SequenceTrace, TokenTrace, Trace
from knn_logits.windows import plan

_QUERIES_AT_ONCE = 256


def explain(
    model: nn.Module,
    tokenizer: Any,
    datastore: Stores,
    text: str,
    *,
    source: str | None = None,
    weights: Sequence[float] | None = None,
    k: int | None = None,
    lmbda: float | Gate | None = None,
    temperature: float | None = None,
    device: torch.device | str = "cpu",
    threads: int | None = None,
    native_index: bool = False,
    max_neighbors: int = MAX_NEIGHBORS,
    check: bool = True,
    **search: Unpack[SearchSettings],
) -> Trace:
    """Which passages of a datastore speak for each word of a text.

    The text is read in the datastore's windows; each token's probabilities are those the mixture
    gives it after the tokens before it.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A datastore, or its folder; or several, searched as one.
        text: Any text of at least two tokens; for an encoder-decoder model a target.
        source: What an encoder-decoder model reads, without prefix; the text is its translation.
        weights: Share of each of several datastores in the vote; None merges by distance.
        k: Neighbors a query; None takes the datastore's setting, as for the next two.
        lmbda: Weight of the neighbors: a number in [0, 1], or a gate that decides at each token;
            None takes the datastore's gate if it has one.
        temperature: Of the softmax over the neighbors, above 0.
        device: Where to search.
        threads: OpenMP threads for searches; None takes one for small batches.
        native_index: Read an index in FAISS's own format, which cannot be checked.
        max_neighbors: Passages kept a token.
        check: Compare the model with the datastore first.
        search: `refine`, `nprobe`, `retomaton` and the like: how neighbors are found; see
            `KNNConfig`.

    Returns:
        A trace of one sequence, whose prompt is the first token, which nothing predicts; a target
        is traced from its first word on.

    Raises:
        ConfigError: when an encoder-decoder model gets no source, or a causal one gets one.
        CorpusError: when the text is shorter than two tokens.
        MismatchError: when model or tokenizer are not the datastore's.
    """
    checked_text(text, "the text")
    if source is not None:
        checked_text(source, "the source")
    max_neighbors = whole_number("max_neighbors", max_neighbors, 0)
    stores = open_stores(datastore)
    check_tokenizer(tokenizer, stores[0])
    location = locate_key(model, stores[0])
    if check:
        for store in stores:
            check_model(model, store, location)
    config, gate = scoring_settings(stores[0], k=k, lmbda=lmbda, temperature=temperature, **search)
    retriever = open_retriever(
        stores, config, weights=weights, device=device, threads=threads, native=native_index
    )
    pairs = pair_tokenizer(model, tokenizer, stores[0])
    read = _source_ids(pairs, source)
    ids = pairs.targets([text])[0] if pairs else tokenizer(text, verbose=False)["input_ids"]
    if len(ids) < 2:
        raise CorpusError("the text is shorter than two tokens, so nothing predicts it")
    words = token_texts(tokenizer, ids)
    windows = stores[0].manifest.windows
    where = input_device(model)
    all_ids = torch.tensor([ids], device=where)
    tokens: list[TokenTrace] = []
    with evaluating(model):
        for window in plan([0], [len(ids)], windows.window, windows.stride):
            part = [replace(window, source=read)]
            inputs = windows_batch(np.array(ids), part, where)
            states, logits = key_states_and_logits(model, location, inputs)
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
                retriever,
                gate,
                max_neighbors,
            )
    return Trace([SequenceTrace("" if pairs else words[0], tokens)])


def _source_ids(pairs: PairTokenizer | None, source: str | None) -> Array | None:
    if pairs is None:
        if source is not None:
            raise ConfigError("a causal model reads no source: leave out --source")
        return None
    if source is None or not source.strip():
        raise ConfigError(
            "an encoder-decoder model writes to a source: give --source (source= in Python)"
        )
    return pairs.sources([source])[0]


def _traced(
    states: Tensor,
    ids: Tensor,
    log_p_lm: Tensor,
    targets: Tensor,
    words: list[str],
    tokenizer: Any,
    retriever: Retriever,
    gate: Gate | None,
    max_neighbors: int,
) -> list[TokenTrace]:
    tokens = []
    config = retriever.config
    chosen = log_p_lm.gather(-1, targets[:, None])[:, 0]
    best, likeliest = (one.tolist() for one in log_p_lm.max(dim=-1))
    all_ids = [*ids[0].tolist(), int(targets[-1])]
    first = len(all_ids) - len(targets)
    for start in range(0, len(states), _QUERIES_AT_ONCE):
        part = slice(start, start + _QUERIES_AT_ONCE)
        end = ids.shape[1] - len(states) + min(part.stop, len(states))
        wanted = rows_to_search(gate, log_p_lm[part])
        neighbors: Neighbors = retriever.search_steps(
            states[part].unsqueeze(0), ids[:, :end], None if wanted is None else wanted[None]
        ).to("cpu")
        weights = retriever.log_weights(neighbors)
        lmbdas = [config.lmbda] * neighbors.rows
        if gate is not None:
            by_model = log_p_lm[part].to("cpu")
            found, weights = weigh_rows(gate, neighbors, weights, retriever.metric, by_model)
            lmbdas = found.tolist()
        for row in range(neighbors.rows):
            place, one = start + row, slice(row, row + 1)
            tokens.append(
                trace_token(
                    words[place],
                    int(targets[place]),
                    neighbors[one],
                    weights[one],
                    lmbdas[row],
                    float(chosen[place]),
                    tokenizer,
                    retriever.locate,
                    max_neighbors,
                    around=(all_ids[: first + place], all_ids[first + place + 1 :]),
                    likeliest=(likeliest[place], best[place]),
                )
            )
    return tokens
