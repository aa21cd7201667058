"""`tune` tries thousands of settings in one pass with one search, and reports the best.

The distances of a token's neighbors are the same for every setting. So the neighbors are searched
once, used for all settings, and then dropped. The memory does not grow with the text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from typing_extensions import Unpack

from knn_logits.arrays import Bools, Ints
from knn_logits.corpus.documents import Document
from knn_logits.engine.forward import evaluating
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.measure.bench import Bench, BenchSettings, open_bench
from knn_logits.measure.likelihood import (
    LMBDAS,
    Choice,
    Grid,
    GridLikelihood,
    spread,
    temperatures_around,
)
from knn_logits.measure.overlap import OverlapCheck
from knn_logits.measure.perplexity import describe, searched
from knn_logits.measure.text_pass import TokenScores
from knn_logits.measure.texts import Texts, named
from knn_logits.measure.tune.confidence import HeldOut
from knn_logits.measure.tune.gates import Gathered, fit
from knn_logits.measure.tune.parts import Halves, halved
from knn_logits.measure.tune.result import Part, Tuning
from knn_logits.measure.tune.storing import refusal, write_settings
from knn_logits.measure.tune.translating import choose_by_bleu
from knn_logits.measure.tune.wanted import GateKind, SkipKind, Wanted
from knn_logits.mixture.gates.learned import FEW
from knn_logits.mixture.memory import Memory
from knn_logits.progress import Progress, no_progress
from knn_logits.search.combined import Stores, open_stores
from knn_logits.search.neighbors import Neighbors, powers_up_to
from knn_logits.settings.config import DEFAULT_K, MOST_SEED, whole_number
from knn_logits.settings.registry import stored_names
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import SettingsRecord

logger = logging.getLogger(__name__)


def tune(
    model: nn.Module,
    tokenizer: Any,
    datastore: Memory | Stores,
    texts: Texts | Iterable[Document | str],
    *,
    gate: GateKind | Literal["none"] | None = None,
    skip: float | None = None,
    skip_by: SkipKind = "learned",
    bleu: int | None = None,
    num_beams: int = 1,
    samples: int = 1000,
    seed: int = 0,
    write: bool = False,
    force: bool = False,
    allow_overlap: bool = False,
    progress: Progress = no_progress,
    **settings: Unpack[BenchSettings],
) -> Tuning:
    """Chooses k, λ and temperature for a datastore by the likelihood of texts.

    The documents are divided into two parts of similar size. Settings are chosen on one part, and
    their perplexity is measured on the other. A single document is cut in the middle.

    Khandelwal et al. (2020), "Generalization through Memorization", section 3, choose λ on
    validation text. The temperature is that of Khandelwal et al. (2021), equation 2.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A `Memory` of this model, or a datastore or its folder.
        texts: Documents that resemble those the model will meet, and are not in the datastore.
            They are read once.
        gate: A kind of gate to fit at the chosen k and temperature: "distance" or "learned".
            "meta-k" and "rescorer" read the neighbors of the largest k that is tried. "constant" is
            the best number, for a gate that skips. "none" removes a stored gate. Fitting keeps
            about 400 bytes for each token. A rescorer keeps 10 bytes for each neighbor as well,
            10 kB a token at k 1,024, and at most 256 MB for each half of the text. A longer text is
            sampled, and the gate is then fitted and judged on the sample.
        skip: Share of the tokens that the gate does not search for, at least 0 and below 1.
        skip_by: How these tokens are chosen: by a "learned" network, or by the model's
            "confidence".
        bleu: For an encoder-decoder model, the number of likeliest settings to translate with. The
            setting with the highest BLEU is taken.
        num_beams: Number of beams for these translations; 1 is greedy search.
        samples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap, and of the gate's first weights.
        write: Store the choice in the datastore, and the gate with it. A stored gate stays if no
            gate is asked for. The choice is stored only if a bootstrap of the held-out part shows
            that it is significantly better than the stored settings. Otherwise `refused` of the
            result says why, and how much text would be needed.
        force: Store the choice even then.
        allow_overlap: Do not check whether the datastore holds the texts. With the check, a
            warning tells of such texts, and a choice on them is not stored.
        progress: A callback that is told how many of the tokens read so far are scored.
        settings: `k` is the largest that is tried. Its default is 1,024, or the datastore's if
            that is larger. `open_bench` explains `window`, `concatenate` and `batch_tokens`.
            `Memory` explains `refine`, `nprobe`, `device` and so on.

    Returns:
        The choice, and the perplexity under every setting.

    Raises:
        ConfigError: when a setting is out of its range, or several datastores are to be written.
        CorpusError: when a part has no token that follows another.
        MismatchError: when model or tokenizer are not the datastore's.
    """
    lots = named(texts)
    samples, seed = whole_number("samples", samples, 0), whole_number("seed", seed, 0, MOST_SEED)
    if bleu is not None:
        bleu = whole_number("bleu", bleu, 1)
    stores = datastore.stores if isinstance(datastore, Memory) else open_stores(datastore)
    if write and len(stores) > 1:
        raise ConfigError(
            "write can store settings in one datastore only: tune each datastore by itself"
        )
    request = Wanted.of(gate, skip, skip_by)
    if bleu is not None and request is not None:
        raise ConfigError("a gate is fitted by likelihood: leave out bleu, or the gate and skip")
    stored_settings = stores[0].manifest.settings
    # The datastore's own gate is not used here.
    options: Any = {"k": max(DEFAULT_K, stored_settings.k), "lmbda": stored_settings.lmbda}
    # With these two and a temperature, the suffix weight would be the papers'.
    options["suffix_weight"] = stored_settings.suffix_weight
    if isinstance(datastore, Memory):
        options["suffix_weight"] = datastore.asked(scoring=True).config.suffix_weight
    options |= {name: value for name, value in settings.items() if value is not None}
    bench = open_bench(model, tokenizer, datastore, **options)
    assert bench.memory is not None
    if bleu is not None and bench.pairs is None:
        raise ConfigError("a causal model does not translate, so it has no BLEU: leave bleu out")
    rows: list[Document] = []
    if bleu is not None:
        rows = list(chain.from_iterable(lots.values()))
        lots = named(rows)
    memory = bench.memory
    if memory.retriever.weights is not None and request is not None and request.reads_all:
        raise ConfigError(
            f"a gate of the kind {request.kind} weighs all neighbors together, whatever share "
            "their datastore has: leave the weights out, or fit another gate"
        )
    started = time.monotonic()
    gathered = (Gathered(request, seed), Gathered(request, seed)) if request is not None else None
    check = None if allow_overlap else OverlapCheck(stores, bench.memory.config.exclude)
    first_half, other, stored, halves = _pass(
        bench, stored_settings, lots, progress, gathered, check
    )
    metric = bench.memory.retriever.metric
    # A gate reads features of so many nearest neighbors, and needs as many as it was fitted on.
    least = 1 if request is None else first_half.grid.ks[-1] if request.reads_all else FEW
    best = first_half.best(least_k=min(least, first_half.grid.ks[-1]))
    fitted = None
    if gathered is not None:
        progress("gate", 0, None)
        fitted = fit(*gathered, metric, best, samples=samples, seed=seed, progress=progress)
    decoded = None
    if bleu is not None:
        away = set(halves.held_out())
        best, decoded = choose_by_bleu(
            model,
            tokenizer,
            bench.memory,
            stored_settings,
            first_half,
            [row for number, row in enumerate(rows) if number not in away],
            [rows[number] for number in sorted(away)],
            bleu,
            num_beams=num_beams,
            progress=progress,
        )
    seconds = time.monotonic() - started
    before = _place(stored[0].grid, stored_settings)
    chosen_on, held_out = (
        Part(number, part.tokens, *_perplexities(part, best.place, same, before))
        for part, same, number in zip((first_half, other), stored, halves.counts(), strict=True)
    )
    described = describe(bench)
    for name in stored_names("scoring"):
        described.pop(name, None)
    result = Tuning(
        k=best.k,
        lmbda=best.lmbda,
        temperature=best.temperature,
        chosen_on=chosen_on,
        held_out=held_out,
        at_the_edge=_edges(best, first_half.grid),
        grid=first_half.grid,
        perplexities=first_half.perplexities().numpy(),
        held_out_perplexities=other.perplexities().numpy(),
        place=best.place,
        settings=described,
        seconds=seconds,
        gate=fitted,
        held_out_documents=halves.held_out(),
        bleu=decoded,
        verdict=other.cells.verdict(
            before, best.place, samples=samples, seed=seed, other=stored[1].cells
        ),
        overlap=None if check is None else check.result(),
        suffix_weight=bench.memory.config.suffix_weight,
    )
    if result.overlap is not None and result.overlap.notable:
        logger.warning("%s, so the choice is worse on other text", result.overlap)
    if write:
        refused = None if force else refusal(result, before if stored[0] is first_half else None)
        result = replace(result, written=refused is None, refused=refused)
        if refused is None:
            _write(stores[0], result, keep_gate=gate is None)
        else:
            logger.warning("the settings are not written: %s", refused)
    return result


def _write(store: Datastore, result: Tuning, *, keep_gate: bool) -> None:
    fitted_gate = result.gate.gate if result.gate is not None else None
    keep_gate = keep_gate and store.manifest.file("gate") is not None
    write_settings(
        store,
        result.k,
        result.lmbda,
        result.temperature,
        fitted_gate,
        keep_gate=keep_gate,
        suffix_weight=result.suffix_weight,
    )
    if keep_gate:
        logger.warning(
            "%s keeps its gate, which was fitted to the old settings and holds where no lmbda is "
            "given: fit it again with --gate KIND, or remove it with --gate none",
            store.folder,
        )


def _pass(
    bench: Bench,
    stored_settings: SettingsRecord,
    texts: Texts,
    progress: Progress,
    gathered: tuple[Gathered, Gathered] | None = None,
    check: OverlapCheck | None = None,
) -> tuple[GridLikelihood, HeldOut, tuple[GridLikelihood, HeldOut], Halves]:
    """Scores the texts under all settings, and under the datastore's own."""
    text, halves = halved(bench, texts, check)
    memory = bench.memory
    assert memory is not None
    weighing, weight = memory.weighing, memory.config.suffix_weight
    if weight == 1.0 and stored_settings.suffix_weight != 1.0:
        # A search under the weight 1 counts no shared tokens.
        counting = memory.asked(scoring=True, suffix_weight=stored_settings.suffix_weight)
        bench = replace(bench, memory=counting)
    parts: tuple[GridLikelihood, HeldOut] | None = None
    first = 1 if gathered is None or gathered[0].wanted.reads_all else FEW
    done = 0
    progress("tuning", 0, None)
    with evaluating(bench.model):
        for scored, neighbors in searched(bench, text.pieces()):
            assert neighbors is not None
            if parts is None:
                largest = memory.config.k
                grid = Grid(
                    tuple(sorted({*powers_up_to(largest, first), min(largest, stored_settings.k)})),
                    temperatures_around(spread(neighbors), stored_settings.temperature),
                    tuple(sorted({*LMBDAS, stored_settings.lmbda})),
                )
                parts = GridLikelihood(grid, weighing), HeldOut(grid, weighing)
                stored = parts
                if weight != stored_settings.suffix_weight:
                    grid = Grid(
                        (min(largest, stored_settings.k),),
                        (stored_settings.temperature,),
                        (stored_settings.lmbda,),
                    )
                    weighs = replace(weighing, suffix_weight=stored_settings.suffix_weight)
                    stored = GridLikelihood(grid, weighs), HeldOut(grid, weighs)
            second = halves.second(scored.places)
            for number, rows in enumerate((~second, second)):
                if not rows.any():
                    continue
                half, half_neighbors = _rows(scored, neighbors, rows)
                documents_at = text.documents_at(half.places)
                keep = None
                if gathered is not None:
                    keep = gathered[number].keep
                    gathered[number].add(
                        half, half_neighbors, weighing, documents_at, parts[0].grid.ks
                    )
                inside = half.places - np.array(text.starts)[documents_at]
                _add(parts, number, documents_at, inside, half_neighbors, half, keep)
                if stored is not parts:
                    _add(stored, number, documents_at, inside, half_neighbors, half)
            done += len(second)
            progress("tuning", done, text.tokens)
    if parts is None or not all(part.tokens for part in parts):
        raise CorpusError(
            "the texts are too short to choose on one part and report on another: give more text, "
            "best in dozens of documents"
        )
    return *parts, stored, halves


def _add(
    parts: tuple[GridLikelihood, HeldOut],
    number: int,
    documents: Ints,
    inside: Ints,
    neighbors: Neighbors,
    scored: TokenScores,
    keep: Callable[[torch.Tensor], None] | None = None,
) -> None:
    """Adds tokens to one of two halves, the second of which is kept by cells."""
    if number == 0:
        parts[0].add(neighbors, scored.targets, scored.log_p_lm, keep)
    else:
        parts[1].add_by_cell(documents, inside, neighbors, scored, keep)


def _rows(scored: TokenScores, neighbors: Neighbors, rows: Bools) -> tuple[TokenScores, Neighbors]:
    if rows.all():
        return scored, neighbors
    chosen = torch.from_numpy(rows)
    return scored[chosen], neighbors[chosen.to(neighbors.ids.device)]


def _place(grid: Grid, stored_settings: SettingsRecord) -> tuple[int, int, int]:
    """Finds the indices of a datastore's settings in the grid. A larger k counts as the largest."""
    k = min(stored_settings.k, grid.ks[-1])
    return (
        grid.ks.index(k),
        grid.temperatures.index(stored_settings.temperature),
        grid.lmbdas.index(stored_settings.lmbda),
    )


def _perplexities(
    part: GridLikelihood,
    best: tuple[int, int, int],
    stored: GridLikelihood,
    before: tuple[int, int, int],
) -> tuple[float, float, float]:
    lm = float(np.exp(-part.lm / part.tokens))
    return lm, float(stored.perplexities()[before]), float(part.perplexities()[best])


def _edges(best: Choice, grid: Grid) -> tuple[str, ...]:
    """Names the settings whose best value might lie beyond those tried."""
    names = []
    if len(grid.ks) > 1 and best.place[0] == len(grid.ks) - 1:
        names.append("k")
    if best.lmbda > 0.0 and best.place[1] in (0, len(grid.temperatures) - 1):
        names.append("temperature")
    return tuple(names)
