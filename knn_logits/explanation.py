"""`explain`: the same trace for a text that exists already, without generating."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from knn_logits.capture.forward import evaluating, input_device, key_states_and_logits
from knn_logits.capture.location import is_encoder_decoder
from knn_logits.compatibility import check_model, check_tokenizer, locate_key
from knn_logits.datastore.store import Datastore
from knn_logits.distribution import log_weights
from knn_logits.errors import CorpusError, ModelError
from knn_logits.gating.gate import Gate, lmbda_of_rows, split_lmbda
from knn_logits.neighbors import Neighbors
from knn_logits.processor import resolve_config
from knn_logits.retrieval import Retriever
from knn_logits.trace.assemble import MAX_NEIGHBORS, token_texts, trace_token
from knn_logits.trace.trace import SequenceTrace, TokenTrace, Trace
from knn_logits.windows import plan

_QUERIES_AT_ONCE = 256


def explain(
    model: nn.Module,
    tokenizer: Any,
    datastore: Datastore | str | os.PathLike[str],
    text: str,
    *,
    k: int | None = None,
    lmbda: float | Gate | None = None,
    temperature: float | None = None,
    refine: bool = False,
    nprobe: int | None = None,
    device: torch.device | str = "cpu",
    threads: int | None = None,
    max_neighbors: int = MAX_NEIGHBORS,
    check: bool = True,
) -> Trace:
    """Which passages of a datastore speak for each word of a text.

    The text is read in the datastore's windows; each token's probabilities are those the mixture
    gives it after the tokens before it.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A datastore, or its folder.
        text: Any text of at least two tokens.
        k: Neighbors a query; None takes the datastore's setting, as for the next two.
        lmbda: Weight of the neighbors: a number in [0, 1], or a gate that decides at each token.
        temperature: Of the softmax over the neighbors, above 0.
        refine: Recompute distances from the stored keys.
        nprobe: Inverted lists visited a query; None keeps the index's.
        device: Where to search.
        threads: OpenMP threads for searches; None takes one for small batches.
        max_neighbors: Passages kept a token.
        check: Compare the model with the datastore first.

    Returns:
        A trace of one sequence, whose prompt is the first token.

    Raises:
        CorpusError: when the text is shorter than two tokens.
        MismatchError: when model or tokenizer are not the datastore's.
    """
    if is_encoder_decoder(model):
        raise ModelError("explain reads one text; an encoder-decoder model needs a source as well")
    datastore = datastore if isinstance(datastore, Datastore) else Datastore(datastore)
    check_tokenizer(tokenizer, datastore)
    location = locate_key(model, datastore)
    if check:
        check_model(model, datastore, location)
    number, gate = split_lmbda(lmbda, datastore.manifest.metric)
    config = resolve_config(
        datastore.manifest.settings,
        k=k,
        lmbda=number,
        temperature=temperature,
        refine=refine,
        nprobe=nprobe,
    )
    retriever = Retriever(datastore, config, device=device, threads=threads)
    ids = tokenizer(text, verbose=False)["input_ids"]
    if len(ids) < 2:
        raise CorpusError("the text is shorter than two tokens, so nothing predicts it")
    words = token_texts(tokenizer, ids)
    windows = datastore.manifest.windows
    where = input_device(model)
    all_ids = torch.tensor([ids], device=where)
    tokens: list[TokenTrace] = []
    with evaluating(model):
        for window in plan([0], [len(ids)], windows.window, windows.stride):
            part = all_ids[:, window.start : window.start + window.size]
            states, logits = key_states_and_logits(model, location, {"input_ids": part})
            first = window.start + window.skip + 1
            scores = logits[0, window.skip :].float()
            targets = torch.tensor(ids[first : first + window.entries], device=scores.device)
            log_p_lm = torch.log_softmax(scores, dim=-1)
            tokens += _traced(
                states[0, window.skip :],
                log_p_lm,
                targets,
                words[first : first + window.entries],
                tokenizer,
                retriever,
                gate,
                max_neighbors,
            )
    return Trace([SequenceTrace(words[0], tokens)])


def _traced(
    states: Tensor,
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
    for start in range(0, len(states), _QUERIES_AT_ONCE):
        part = slice(start, start + _QUERIES_AT_ONCE)
        neighbors: Neighbors = retriever.search(states[part]).to("cpu")
        weights = log_weights(neighbors, retriever.metric, config.temperature)
        lmbdas = [config.lmbda] * neighbors.rows
        if gate is not None:
            by_model = log_p_lm[part].to("cpu")
            lmbdas = lmbda_of_rows(gate, neighbors, retriever.metric, by_model).tolist()
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
                    retriever.store,
                    max_neighbors,
                )
            )
    return tokens
