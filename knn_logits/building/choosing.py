"""Chooses the kind of index by measurement on a sample of the datastore's own keys."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from knn_logits.building.recall import RECALL_AT, Truth, recall
from knn_logits.errors import ConfigError
from knn_logits.index.backends import backend
from knn_logits.index.base import Index
from knn_logits.index.choice import choose_lists
from knn_logits.index.exact import ExactIndex
from knn_logits.index.opening import training_sample
from knn_logits.progress import Progress, no_progress
from knn_logits.settings.config import IndexConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import TriedRecord

logger = logging.getLogger(__name__)

# Kinds are compared on so many keys, with so many of them as queries.
_SAMPLE, _QUERIES = 16_384, 256
# So many lists are visited that hardly a neighbor is missed for being in another list. The build
# chooses nprobe afterwards.
_NPROBE = 32
_QUERIES_AT_ONCE, _TIMED = 8, 12
# With fewer keys than this nothing needs to be small, and FAISS warns of its codebooks.
FEWEST = 10_000


def kinds_for(dim: int, lists: int) -> list[str]:
    """Lists the kinds of index that are compared; learning OPQ's rotation takes too long."""
    kinds = [f"IVF{lists},SQ8", f"IVF{lists},SQ4"]
    if dim % 8 == 0:
        kinds += [f"PCA{dim // 2},IVF{lists},SQ8", f"IVF{lists},RaBitQ"]
        kinds += [f"IVF{lists},PQ{codes}" for codes in (dim // 4, dim // 8)]
    return kinds


def chosen_factory(tried: Sequence[TriedRecord], config: IndexConfig) -> str:
    """Chooses the kind of index for a budget, for a recall, or for both, among those tried."""
    fitting = [kind for kind in tried if config.budget is None or kind.bytes <= config.budget]
    if not fitting:
        raise _too_small(config.budget, {kind.factory: kind.bytes for kind in tried})
    if config.target_recall is None:
        return max(fitting, key=lambda kind: (kind.recall, -kind.bytes)).factory
    enough = [kind for kind in fitting if kind.recall >= config.target_recall]
    if not enough:
        best = max(fitting, key=lambda kind: kind.recall)
        raise ConfigError(
            f"no index type within the budget reaches a recall of {config.target_recall:.1%}; "
            f"the best, {best.factory}, reaches {best.recall:.1%} in {best.bytes:,} bytes: lower "
            "--target-recall, or raise --budget"
        )
    return min(enough, key=lambda kind: kind.bytes).factory


def _too_small(budget: int | None, sizes: Mapping[str, int]) -> ConfigError:
    smallest = min(sizes, key=lambda factory: sizes[factory])
    return ConfigError(
        f"no index type fits in {budget:,} bytes; the smallest, {smallest}, takes "
        f"{sizes[smallest]:,}: raise --budget, or store no keys (--no-keys)"
    )


def measured_kinds(
    store: Datastore, config: IndexConfig | None = None, progress: Progress = no_progress
) -> tuple[TriedRecord, ...]:
    """Builds the kinds of index within the budget over a sample of keys; the smallest first."""
    from knn_logits.index.faiss_backend import build_faiss

    config = config or IndexConfig()
    dim, metric = store.manifest.dim, store.manifest.metric
    present = len(store) - len(store.merged_away)
    sizes = {
        whole: backend(whole, dim, metric).file_bytes(present, native=False)
        for whole in kinds_for(dim, choose_lists(len(store)))
    }
    if config.budget is not None and min(sizes.values()) > config.budget:
        raise _too_small(config.budget, sizes)
    keys = training_sample(store, _SAMPLE, config.seed)
    chosen = np.sort(np.random.default_rng(config.seed).permutation(len(keys))[:_QUERIES])
    queries = torch.from_numpy(keys[chosen])
    _, ids = ExactIndex(torch.from_numpy(keys), metric).search(queries, RECALL_AT + 1)
    truth = Truth(chosen, ids.numpy(), lambda entries: keys[entries], metric)
    lists = choose_lists(len(keys))
    kinds = [
        (small, whole)
        for small, whole in zip(kinds_for(dim, lists), sizes, strict=True)
        if config.budget is None or sizes[whole] <= config.budget
    ]
    tried = []
    for number, (small, whole) in enumerate(kinds):
        progress("comparing indexes", number, len(kinds))
        started = time.monotonic()
        index = build_faiss(small, dim, metric, keys, [keys], None)
        seconds = time.monotonic() - started
        index.nprobe = min(_NPROBE, lists)
        tried.append(
            TriedRecord(
                factory=whole,
                bytes=sizes[whole],
                recall=round(recall(index, truth), 4),
                milliseconds=round(_milliseconds(index, queries), 3),
                seconds=round(seconds * len(store) / len(keys), 1),
            )
        )
        logger.debug("tried %s", tried[-1])
    progress("comparing indexes", len(kinds), len(kinds))
    return tuple(sorted(tried, key=lambda kind: kind.bytes))


def _milliseconds(index: Index, queries: Tensor) -> float:
    """The fastest time of some searches for eight queries."""
    best = float("inf")
    for batch in queries.split(_QUERIES_AT_ONCE)[:_TIMED]:
        started = time.perf_counter()
        index.search(batch, RECALL_AT)
        best = min(best, time.perf_counter() - started)
    return 1e3 * best


def table(tried: Sequence[TriedRecord]) -> list[str]:
    """Formats what was measured, one line for each kind of index."""
    wide = max((len(kind.factory) for kind in tried), default=5)
    return [
        f"{'index':{wide}}  recall@{RECALL_AT}        bytes  ms (8 queries)  build s",
        *(
            f"{kind.factory:{wide}}  {kind.recall:9.3f}  {kind.bytes:11,}  "
            f"{kind.milliseconds:14.2f}  {kind.seconds:7.0f}"
            for kind in tried
        ),
    ]
