"""Estimates how long each step of a build takes on this machine, from short measurements.

Nothing here reads a datastore. Computing keys is timed on some of the batches, which also shows how
much other programs slow this machine down. A step such as training an index is estimated from the
operation that it repeats, at the operation's best time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.calibration import OVER_ASK, wanted_tokens
from knn_logits.building.sizes import resolved
from knn_logits.building.timing import fastest
from knn_logits.engine.forward import evaluating, input_device, key_states, windows_batch
from knn_logits.engine.keys import grouped
from knn_logits.engine.location import KeyLocation
from knn_logits.engine.windows import TextWindow, batches
from knn_logits.index.choice import choose_train_size
from knn_logits.index.exact import ExactIndex
from knn_logits.measure.likelihood import LMBDAS, Grid, GridLikelihood, temperatures_around
from knn_logits.search.neighbors import Neighbors, powers_up_to
from knn_logits.settings.config import DEFAULT_K, FEWEST_CALIBRATED, IndexConfig, Metric
from knn_logits.store.suffixes import suffix_order

# The time for a measurement that can be cut short, and the fewest batches that it needs.
_BUDGET, _FEWEST_BATCHES = 2.0, 3
# The numbers of vectors and queries, and the bytes of the keys that they are compared with.
_VECTORS, _KEYS, _QUERIES = 1024, 32 << 20, 256
_ROWS = 64
# The suffix index is timed on so many tokens.
_SORTED = 1 << 16
# k-means of an inverted file and of a product quantiser, as FAISS does them.
_ROUNDS, _ROUNDS_OF_CODES, _MOST_OF_A_CENTROID = 10, 25, 256
# The most bytes of centroids that are compared with.
_CENTROIDS = 64 << 20
# Bytes a second: hashing, then writing.
_WRITTEN = 400e6


def key_seconds(
    model: nn.Module,
    location: KeyLocation,
    tokens: Array,
    windows: Sequence[TextWindow],
    *,
    dim: int,
    dtype: str,
    batch_tokens: int,
    seed: int = 0,
) -> tuple[float, float]:
    """Estimates the seconds for the keys of some windows, and how much other programs slow it.

    Args:
        model: The model.
        location: Where the key is.
        tokens: int32, the corpus or its beginning. A window beyond the end reads other tokens.
        windows: From `windows.plan`.
        dim: Length of a key.
        dtype: The keys' precision.
        batch_tokens: Tokens a forward pass.
        seed: Seed of the choice of batches.

    Returns:
        The seconds under the machine's present load, and the factor, at least 1, by which that
        load slows work down.
    """
    device = input_device(model)
    groups = list(grouped(windows, dim=dim, dtype=dtype, batch_tokens=batch_tokens))
    chance = random.Random(seed)
    chosen = chance.sample(groups, min(3, len(groups)))
    waiting = [one for group in chosen for one in batches(group, batch_tokens)]
    total = sum(window.size for window in windows)
    chance.shuffle(waiting)
    read, spent, worked = 0, 0.0, 0.0
    with evaluating(model):
        for number, batch in enumerate([waiting[0], *waiting]):
            moved = [_within(window, len(tokens)) for window in batch]
            began, began_work = time.perf_counter(), time.process_time()
            states = key_states(model, location, windows_batch(tokens, moved, device))
            states.to(getattr(torch, dtype)).cpu()
            if number == 0:
                continue  # the very first pass takes longer
            spent += time.perf_counter() - began
            worked += time.process_time() - began_work
            read += sum(window.size for window in batch)
            if spent > _BUDGET and number >= _FEWEST_BATCHES:
                break
    slowed = 1.0
    if device.type == "cpu" and worked > 0.0:
        slowed = max(1.0, spent * torch.get_num_threads() / worked)
    return spent * total / max(1, read), slowed


def _within(window: TextWindow, tokens: int) -> TextWindow:
    """Moves a window that lies beyond the tokens at hand into them."""
    return replace(window, start=window.start % max(1, tokens - window.size))


def index_seconds(
    config: IndexConfig, entries: int, dim: int, metric: Metric, threads: int | None
) -> float:
    """Seconds to train and to fill an index, recall left out."""
    factory = resolved(config, entries, dim)
    if factory == "exact":
        return entries * dim / 1e9
    from knn_logits.index.faiss_library import inverted_file, make_empty

    empty = make_empty(factory, dim, metric)
    ivf = inverted_file(empty)
    lists = int(ivf.nlist) if ivf is not None else 256
    trained = min(entries, config.train_size or choose_train_size(entries, lists))
    one = _assignment_seconds(lists, dim, threads)
    seconds = (_ROUNDS * trained + entries) * one
    quantiser = getattr(ivf, "pq", None)
    if quantiser is not None:
        # A product quantiser clusters each of its parts by itself, and the calls cost the most.
        parts, centroids = int(quantiser.M), int(quantiser.ksub)
        one = parts * _assignment_seconds(centroids, int(quantiser.dsub), threads)
        learnt = min(trained, _MOST_OF_A_CENTROID * centroids)
        seconds += (_ROUNDS_OF_CODES * learnt + entries) * one
    return seconds


def _assignment_seconds(lists: int, dim: int, threads: int | None) -> float:
    """Seconds to find a vector's nearest centroid."""
    from knn_logits.index.kmeans import assign

    chance = np.random.default_rng(0)
    held = max(1, min(lists, _CENTROIDS // (4 * dim)))
    centroids = chance.standard_normal((held, dim), dtype=np.float32)
    count = max(64, min(_VECTORS, _CENTROIDS // (64 * dim)))
    vectors = chance.standard_normal((count, dim), dtype=np.float32)
    spent = fastest(lambda: assign(centroids, vectors, normal=False, threads=threads))
    return spent / count * lists / held


def recall_seconds(entries: int, dim: int, metric: Metric, factory: str) -> float:
    """Seconds to measure an index's recall, most of them for the exact search."""
    if factory == "exact" or entries < 2:
        return 0.0
    held = max(1, min(entries, _KEYS // (4 * dim)))
    return 1.2 * _exact_seconds(held, dim, metric, torch.get_num_threads()) * entries / held


@lru_cache(maxsize=16)
def _exact_seconds(held: int, dim: int, metric: Metric, threads: int) -> float:  # noqa: ARG001
    """Seconds of an exact search among so many keys, measured once for all kinds of index."""
    chance = np.random.default_rng(0)
    keys = torch.from_numpy(chance.standard_normal((held, dim), dtype=np.float32))
    queries = keys[: min(_QUERIES, held)].clone()
    return fastest(lambda: ExactIndex(keys, metric).search(queries, min(65, held)))


def calibration_seconds(
    entries: int, metric: Metric, key_seconds_a_token: float, head: float, k: int | None
) -> float:
    """Seconds to choose the settings for scoring.

    Args:
        entries: Entries of the datastore.
        metric: How keys are compared.
        key_seconds_a_token: Seconds for each token of a forward pass without the head.
        head: The factor by which the head makes a forward pass longer.
        k: The value that the user gave, if any.
    """
    tokens = wanted_tokens(entries)
    if entries < FEWEST_CALIBRATED:
        return 0.0
    asked = min(entries, OVER_ASK * (k or DEFAULT_K))
    one = _settings_seconds(asked, metric, k, torch.get_num_threads())
    # The search itself, which sorts out as many candidates.
    search = 2e-4 + 2e-7 * asked
    return tokens * (one + search + key_seconds_a_token * head)


@lru_cache(maxsize=16)
def _settings_seconds(asked: int, metric: Metric, k: int | None, threads: int) -> float:  # noqa: ARG001
    """Seconds to try all settings on one token, measured once for all kinds of index."""
    ks = (k,) if k else powers_up_to(DEFAULT_K, 64)
    grid = Grid(ks, temperatures_around(100.0, 10.0), LMBDAS[2:])
    rows = torch.rand(_ROWS, asked).sort(dim=-1).values * 100.0
    found = Neighbors(torch.zeros(rows.shape, dtype=torch.int64), rows, (rows * 7).long())
    likelihood = GridLikelihood(grid, metric)
    targets, log_p_lm = torch.zeros(_ROWS, dtype=torch.int64), torch.full((_ROWS,), -3.0)
    return fastest(lambda: likelihood.add(found, targets, log_p_lm)) / _ROWS


def head_factor(model: nn.Module, dim: int) -> float:
    """The factor by which the head makes a forward pass longer, from the numbers of weights."""
    body = sum(one.numel() for one in model.parameters())
    head = getattr(model, "get_output_embeddings", lambda: None)()
    size = int(head.weight.numel()) if head is not None else dim
    return 2.0 + size / max(1, body - size)


def suffix_seconds(tokens: Array, total: int) -> float:
    """Seconds to make the suffix index of a text, from its beginning.

    Args:
        tokens: int32, the text or its beginning.
        total: Number of tokens of the whole text.
    """
    some = np.asarray(tokens[:_SORTED])
    first = np.zeros(1, np.int64)
    return fastest(lambda: suffix_order(some, first)) * total / max(1, len(some))


def writing_seconds(size: float) -> float:
    """Seconds to write so many bytes and to hash them."""
    return size / _WRITTEN
