"""`evaluate` measures how well a model, its neighbors and their mixture predict streamed texts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from knn_logits.arrays import Array, Floats, Ints
from knn_logits.corpus.documents import Document, several
from knn_logits.engine.compatibility import model_record
from knn_logits.engine.forward import evaluating
from knn_logits.engine.windows import Piece
from knn_logits.errors import CorpusError
from knn_logits.measure.bench import (
    Bench,
    BenchSettings,
    held_share,
    is_held,
    open_bench,
    overlap_words,
)
from knn_logits.measure.results import Evaluation, Perplexities, TokenTable, compared, perplexity
from knn_logits.measure.text_pass import Text, TokenScores, score_pieces
from knn_logits.mixture.gates.gate import gate_name
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.vote import log_p_knn_of, mix_row
from knn_logits.progress import Progress, no_progress
from knn_logits.search.combined import Stores
from knn_logits.search.neighbors import Neighbors, Prefixes
from knn_logits.search.retriever import MAX_SHARED_TOKENS, Retriever
from knn_logits.settings.registry import changed_settings

logger = logging.getLogger(__name__)

# The most queries of one search. With k 1024 their neighbors take 40 MB.
_QUERIES_AT_ONCE = 2048
# The steps after which neighbors of RetoMaton are passed on. With 4 windows and 2048 columns they
# take 40 MB.
_STEPS_AT_ONCE = 256


@dataclass(frozen=True)
class TokenLikelihoods:
    """Log-likelihoods of some tokens of a text."""

    places: Ints  # int64 [rows], the position of each token in the text
    lm: Tensor  # float32 [rows], log p_LM
    # float32 [rows], log p_kNN; -inf where no neighbor votes for the token. With the ∞-gram it is
    # the vote of both.
    knn: Tensor
    mixed: Tensor  # float32 [rows], log p of the mixture
    searches: int  # for how many of the tokens a search was made
    targets: Tensor  # int64 [rows], the tokens
    lmbdas: Tensor  # float32 [rows], λ, which is 0 without neighbors
    # The neighbors, with the occurrences of experts, and their weights; None without a memory.
    neighbors: Neighbors | None = None
    log_weights: Tensor | None = None  # float32 [rows, k]


def evaluate(
    model: nn.Module,
    tokenizer: Any,
    datastore: Memory | Stores | None,
    texts: Iterable[Document | str],
    *,
    allow_overlap: bool = False,
    per_token: str | Path | None = None,
    against: str | Path | None = None,
    progress: Progress = no_progress,
    **settings: Unpack[BenchSettings],
) -> Evaluation:
    """Measures the perplexity of a text under the model, its neighbors, and their mixture.

    Each token is predicted once, with at least `window - stride` tokens before it where its
    document has them. Khandelwal et al. (2020), "Generalization through Memorization", section 3.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A `Memory` of this model, or one or several datastores or their folders. None
            measures the model alone.
        texts: The documents of the text. They are read once.
        allow_overlap: Do not check whether the datastores hold the text. With the check, a warning
            names the share.
        per_token: A parquet file to write with a row for each token: its log p, p_kNN, λ, the
            nearest distance, and the documents that vote for it.
        against: Such a file of another run over the same text, which this one is compared with by
            a paired bootstrap.
        progress: A callback that is told how many of the tokens read so far are scored.
        settings: `window`, `concatenate`, `batch_tokens` and `cache`, which `open_bench` explains;
            `k`, `lmbda`, `retomaton` and so on, which `Memory` explains. The
            default of each is the datastore's setting.

    Returns:
        The measures of the text.

    Raises:
        ConfigError: when a setting is out of its range.
        CorpusError: when the text has no token that follows another.
        MismatchError: when model or tokenizer are not the datastore's.
    """
    texts = several(texts, "texts")
    table = None if per_token is None and against is None else TokenTable(against)
    bench = open_bench(model, tokenizer, datastore, **settings)
    memory, text = bench.memory, bench.text(texts)
    started = time.monotonic()
    documents, (lm, knn, mixed), searches = _scored(bench, text, progress, table)
    seconds = time.monotonic() - started
    overlap = None
    if memory is not None and not allow_overlap:
        overlap = held_share(text, memory.stores, memory.config.exclude)
        if is_held(overlap):
            logger.warning(f"{overlap_words(overlap)}, so results on other text will be worse")
    if table is not None and per_token is not None:
        table.write(per_token)
    return Evaluation(
        documents=len(text.starts),
        tokens=len(lm),
        perplexity=Perplexities(
            perplexity(-lm.sum(), len(lm)),
            None if memory is None else perplexity(-knn.sum(), len(lm)),
            None if memory is None else perplexity(-mixed.sum(), len(lm)),
        ),
        interval=None if memory is None else compared(mixed - lm, documents)["interval"],
        settings=describe(bench),
        searches=searches,
        searches_saved=0 if memory is None else len(lm) - searches,
        seconds=seconds,
        overlap=overlap,
        against=None if table is None else table.comparison(),
    )


def _scored(
    bench: Bench, text: Text, progress: Progress, table: TokenTable | None
) -> tuple[Ints, list[Floats], int]:
    """Each token's document, its log p by model, neighbors and mixture, and the searches."""
    columns: list[tuple[Array, ...]] = []
    searches, done = 0, 0
    progress("evaluation", 0, None)
    with evaluating(bench.model):
        for batch in token_likelihoods(bench, text.pieces()):
            documents = text.documents_at(batch.places)
            logs = (log.double().numpy() for log in (batch.lm, batch.knn, batch.mixed))
            columns.append((batch.places, *logs))
            if table is not None:
                table.add(documents, batch, bench.memory)
            searches += batch.searches
            done += len(batch.places)
            progress("evaluation", done, None)
    if not done:
        raise CorpusError("the text has no token to predict; use a longer text")
    places, *sides = map(np.concatenate, zip(*columns, strict=True))
    order = np.argsort(places)
    return text.documents_at(places[order]), [side[order] for side in sides], searches


def token_likelihoods(bench: Bench, pieces: Iterable[Piece]) -> Iterator[TokenLikelihoods]:
    """Scores windows of a text token by token, with one search for each forward pass."""
    for scored, neighbors in searched(bench, pieces):
        if neighbors is None or bench.memory is None:
            nothing, lm = torch.full_like(scored.log_p_lm, float("-inf")), scored.log_p_lm
            none = torch.zeros_like(lm)
            yield TokenLikelihoods(scored.places, lm, nothing, lm, 0, scored.targets, none)
            continue
        for rows, found, weights, lmbdas in _votes(bench.memory, scored, neighbors):
            targets, lm = scored.targets[rows], scored.log_p_lm[rows]
            knn = log_p_knn_of(weights, found.values, targets.to(weights.device)).cpu()
            searches = len(targets) if found.searched is None else int(found.searched.sum())
            mixed = mix_row(lm, knn, lmbdas)
            yield TokenLikelihoods(
                scored.places[rows], lm, knn, mixed, searches, targets, lmbdas, found, weights
            )


def _votes(
    memory: Memory, scored: TokenScores, neighbors: Neighbors
) -> Iterator[tuple[slice, Neighbors, Tensor, Tensor]]:
    """Yields rows with their neighbors, log weights, and λ, which is 0 without neighbors."""
    if not memory.reads_distributions:
        lmbdas = torch.full_like(scored.log_p_lm, memory.config.lmbda)
        lmbdas = lmbdas.masked_fill(~neighbors.mask.any(dim=-1).cpu(), 0.0)
        yield slice(None), neighbors, memory.weighing.log_weights(neighbors), lmbdas
        return
    for rows, log_p in scored.distributions.parts():
        found = memory.with_occurrences(neighbors[rows], scored.prefixes[rows])
        vote = memory.vote(found, log_p)
        yield rows, vote.neighbors, vote.log_weights, vote.lmbdas.cpu()


def searched(
    bench: Bench, pieces: Iterable[Piece]
) -> Iterator[tuple[TokenScores, Neighbors | None]]:
    """Scores windows of a text with the model alone, and searches the neighbors of each token."""
    memory = bench.memory
    how = (bench.batch_tokens, bench.cache)
    for scored in score_pieces(bench.model, bench.location, pieces, *how):
        if memory is not None and memory.retriever.follows_text:
            yield from followed(memory.retriever, scored)
            continue
        for first in range(0, len(scored.targets), _QUERIES_AT_ONCE):
            part = scored[first : first + _QUERIES_AT_ONCE]
            if memory is None:
                yield part, None
            else:
                yield part, memory.retriever.search(part.states, part.prefixes)


def followed(retriever: Retriever, scored: TokenScores) -> Iterator[tuple[TokenScores, Neighbors]]:
    """Steps through windows in parallel, each a text of its own."""
    lengths = torch.tensor(scored.lengths)
    starts = torch.cumsum(lengths, 0) - lengths
    longest = int(lengths.max())
    # Each window becomes a text of its own: it starts with a number that no token has, and with the
    # tokens before its first target that entries are compared with.
    before = MAX_SHARED_TOKENS + 1
    ids = torch.full((len(lengths), before + longest), -1, dtype=torch.int64)
    ids[:, 0] = -1 - torch.arange(len(lengths))
    prefixes = scored.prefixes
    for row, (start, length) in enumerate(zip(starts.tolist(), scored.lengths, strict=True)):
        end = int(prefixes.end[start])
        context = prefixes.tokens[max(int(prefixes.first[start]), end - MAX_SHARED_TOKENS) : end]
        ids[row, before - len(context) : before] = torch.from_numpy(context)
        ids[row, before : before + length] = scored.targets[start : start + length]
    first = 0
    ends = sorted({*scored.lengths, *range(_STEPS_AT_ONCE, longest, _STEPS_AT_ONCE)})
    for end in ends:
        rows = torch.nonzero(lengths >= end)[:, 0]
        steps = torch.arange(first, end)
        places = (starts[rows].unsqueeze(0) + steps.unsqueeze(1)).reshape(-1)
        queries = scored.states[places.to(scored.states.device)]
        texts = Prefixes.of_steps(ids[rows, : before + end - 1], len(steps))
        yield scored[places], retriever.search(queries, texts)
        first = end


def describe(bench: Bench) -> dict[str, Any]:
    """Describes the conditions of an evaluation, for JSON."""
    settings: dict[str, Any] = {"model": model_record(bench.model).id}
    memory = bench.memory
    if memory is not None:
        config, stores = memory.config, memory.stores
        settings |= {
            "datastore": ", ".join(store.name for store in stores),
            "entries": sum(len(store) for store in stores),
            "index": ", ".join(dict.fromkeys(store.manifest.index.factory for store in stores)),
            "metric": memory.retriever.metric,
        }
        names = ["k", "lmbda", "temperature", "refine", "retomaton"]
        if config.retomaton:
            names += ["min_knns", "max_knns", "pointer_weight"]
        settings |= {name: getattr(config, name) for name in names}
        settings["nprobe"] = getattr(getattr(memory.retriever, "index", None), "nprobe", None)
        if memory.gate is not None:
            settings["lmbda"] = gate_name(memory.gate)
        for name in changed_settings(config):
            settings.setdefault(name, getattr(config, name))
    windows = ("window", "stride", "concatenate")
    return settings | {name: getattr(bench, name) for name in windows}
