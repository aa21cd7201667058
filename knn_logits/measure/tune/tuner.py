"""`tune` tries thousands of settings in one pass with one search, and reports the best."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from typing_extensions import Unpack

from knn_logits.corpus.documents import Document
from knn_logits.engine.forward import evaluating
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.measure.bench import Bench, BenchSettings, Halves, halved, open_bench
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
from knn_logits.measure.text_pass import Text, Texts, TokenScores, texts_by_name
from knn_logits.measure.tune.confidence import HeldOut
from knn_logits.measure.tune.gates import NO_GATE, Gathered, check_gate, fit
from knn_logits.measure.tune.result import Part, Tuning, refusal, write_settings
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.vote import Weighing
from knn_logits.progress import Progress, no_progress
from knn_logits.search.combined import Stores, open_stores
from knn_logits.search.neighbors import Neighbors, powers_up_to
from knn_logits.settings.config import DEFAULT_K, MOST_SEED, whole_number
from knn_logits.settings.registry import stored_names
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import SettingsRecord

logger = logging.getLogger(__name__)


class TuneSettings(BenchSettings, total=False):
    """The keyword arguments of `tune`, which documents them."""

    gate: str | None
    samples: int
    seed: int
    write: bool
    force: bool
    allow_overlap: bool


@dataclass(frozen=True)
class _Options:
    """The keyword arguments of `tune` itself, within their ranges."""

    gate: str | None = None
    samples: int = 1000
    seed: int = 0
    write: bool = False
    force: bool = False
    allow_overlap: bool = False

    def __post_init__(self) -> None:
        whole_number("samples", self.samples, 0)
        whole_number("seed", self.seed, 0, MOST_SEED)
        check_gate(self.gate)

    @property
    def fits_gate(self) -> bool:
        """Whether a gate is fitted."""
        return self.gate not in (None, NO_GATE)


def tune(
    model: nn.Module,
    tokenizer: Any,
    datastore: Memory | Stores,
    texts: Texts | Iterable[Document | str],
    *,
    progress: Progress = no_progress,
    **settings: Unpack[TuneSettings],
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
        progress: A callback that is told how many of the tokens read so far are scored.
        gate: "meta-k" also fits a `MetaKGate` at the chosen temperature. It reads the neighbors of
            the largest k that is tried. "none" removes a stored gate. Fitting keeps about 400 bytes
            for each token.
        samples: Number of resamples of the bootstrap (1,000).
        seed: Seed of the bootstrap, and of the gate's first weights.
        write: Store the choice in the datastore, and the gate with it. A stored gate stays if no
            gate is asked for. The choice is stored only if a bootstrap of the held-out part shows
            that it is significantly better than the stored settings. Otherwise `refused` of the
            result says why, and how much text would be needed.
        force: Store the choice even then.
        allow_overlap: Do not check whether the datastore holds the texts. With the check, a
            warning tells of such texts, and a choice on them is not stored.
        settings: `k` is the largest that is tried. Its default is 1,024, or the datastore's if
            that is larger. `open_bench` explains `window`, `concatenate`, `batch_tokens`
            and `cache`.
            `Memory` explains `refine`, `nprobe`, `device` and so on.

    Returns:
        The choice, and the perplexity under every setting.

    Raises:
        ConfigError: when a setting is out of its range, or several datastores are to be written.
        CorpusError: when a part has no token that follows another.
        MismatchError: when model or tokenizer are not the datastore's.
    """
    overrides: dict[str, Any] = {
        name: value for name, value in settings.items() if value is not None
    }
    names = [field.name for field in fields(_Options) if field.name in overrides]
    options = _Options(**{name: overrides.pop(name) for name in names})
    return _tuned(model, tokenizer, datastore, texts_by_name(texts), options, overrides, progress)


def _tuned(
    model: nn.Module,
    tokenizer: Any,
    datastore: Memory | Stores,
    texts: dict[str, Iterator[Document]],
    options: _Options,
    overrides: dict[str, Any],
    progress: Progress,
) -> Tuning:
    stores = datastore.stores if isinstance(datastore, Memory) else open_stores(datastore)
    if options.write and len(stores) > 1:
        raise ConfigError(
            "write can store settings in only one datastore: tune each datastore separately"
        )
    stored = stores[0].manifest.settings
    # With a number for λ, the datastore's own gate is not used.
    preset = {"k": max(DEFAULT_K, stored.k), "lmbda": stored.lmbda}
    if options.fits_gate and overrides.pop("cache", None):
        logger.warning("the cache is not used: a gate is fitted to the model's distributions")
    bench = open_bench(model, tokenizer, datastore, **{**preset, **overrides})
    assert bench.memory is not None
    if options.fits_gate and bench.memory.retriever.weights is not None:
        raise ConfigError("a gate ignores the weights of datastores: omit the weights, or the gate")
    started = time.monotonic()
    check = None if options.allow_overlap else OverlapCheck(stores, bench.memory.config.exclude)
    passed = _Pass(bench, stored, options.fits_gate, progress)
    passed.read(texts, check)
    overlap = None if check is None else check.result()
    result = replace(_choose(passed, options, started), overlap=overlap)
    if overlap is not None and overlap.notable:
        logger.warning("%s, so the chosen settings will do worse on other text", overlap)
    return _stored(stores[0], result, options, passed) if options.write else result


def _choose(passed: _Pass, options: _Options, started: float) -> Tuning:
    """Chooses settings on the first half, and measures them on the other."""
    bench, (first, other) = passed.bench, passed.halves
    assert bench.memory is not None
    # A gate needs as many neighbors as it was fitted on.
    best = first.best(least_k=first.grid.ks[-1] if passed.gathered else 1)
    bootstrap = {"samples": options.samples, "seed": options.seed}
    gate = None
    if passed.gathered:
        passed.progress("gate", 0, None)
        chosen, held = passed.gathered
        gate = fit(chosen, held, bench.memory.retriever.metric, best, **bootstrap)
    seconds = time.monotonic() - started
    before = passed.place()
    chosen_on, held_out_part = (
        Part(
            number,
            part.tokens,
            float(np.exp(-part.lm / part.tokens)),
            float(stored.perplexities()[before]),
            float(part.perplexities()[best.place]),
        )
        for part, stored, number in zip(
            passed.halves, passed.stored, passed.assigned.counts(), strict=True
        )
    )
    conditions, stored_at = describe(bench), stored_names()
    config = bench.memory.config.with_given(
        k=best.k, lmbda=best.lmbda, temperature=best.temperature
    )
    ngram = bench.memory.loop_size
    return Tuning(
        chosen=SettingsRecord(
            **config.stored_values(), calibrated=True, tuned=True, no_repeat_ngram_size=ngram
        ),
        chosen_on=chosen_on,
        held_out=held_out_part,
        at_the_edge=_edges(best.place, first.grid),
        grid=first.grid,
        perplexities=first.perplexities().numpy(),
        held_out_perplexities=other.perplexities().numpy(),
        place=best.place,
        settings={name: conditions[name] for name in conditions if name not in stored_at},
        seconds=seconds,
        gate=gate,
        held_out_documents=passed.assigned.held_out(),
        verdict=other.cells.verdict(before, best.place, other=passed.stored[1].cells, **bootstrap),
    )


def _stored(store: Datastore, result: Tuning, options: _Options, passed: _Pass) -> Tuning:
    """Stores the choice, unless something speaks against it."""
    same_weight = passed.stored is passed.halves
    refused = None
    if not options.force:
        refused = refusal(result, passed.place() if same_weight else None)
    if refused is not None:
        logger.warning("the settings were not stored: %s", refused)
        return replace(result, refused=refused)
    keep_gate = options.gate is None and store.manifest.file("gate") is not None
    gate = None if result.gate is None else result.gate.gate
    write_settings(store, result.chosen, gate, keep_gate=keep_gate)
    if keep_gate:
        logger.warning(
            "%s keeps its gate, which was fitted to the old settings and applies unless lmbda is "
            "set: refit it with --gate meta-k, or remove it with --gate none",
            store.folder,
        )
    return replace(result, written=True)


class _Pass:
    """One pass over the texts: all settings of a grid, and the datastore's own, on both halves."""

    halves: tuple[GridLikelihood, HeldOut]
    stored: tuple[GridLikelihood, HeldOut]  # `halves` where the grid has the datastore's settings
    assigned: Halves
    gathered: tuple[Gathered, Gathered] | None = None  # for a gate

    def __init__(
        self,
        bench: Bench,
        stored_settings: SettingsRecord,
        fits_gate: bool,
        progress: Progress,
    ) -> None:
        self.bench, self.stored_settings, self.progress = bench, stored_settings, progress
        self.fits_gate = fits_gate

    def read(self, texts: Texts, check: OverlapCheck | None) -> None:
        """Scores the texts under all settings, and under the datastore's own."""
        bench, memory = self.bench, self.bench.memory
        text, self.assigned = halved(bench, texts, check)
        assert memory is not None
        if not memory.config.counts_shared:
            # The datastore's own settings may weigh features that a search under these leaves out.
            bench = replace(bench, memory=memory.asked(**self._ungridded()))
        done = 0
        self.progress("tuning", 0, None)
        with evaluating(bench.model):
            for scored, neighbors in searched(bench, text.pieces()):
                assert neighbors is not None
                if not done:
                    self._begin(memory, neighbors)
                second = self.assigned.second(scored.places)
                for number, rows in enumerate((~second, second)):
                    if rows.any():
                        chosen = torch.from_numpy(rows)
                        part, near = scored, neighbors
                        if not rows.all():
                            part, near = scored[chosen], near[chosen.to(near.ids.device)]
                        self._add(number, text, part, near)
                done += len(second)
                self.progress("tuning", done, None)
        if not done or not all(part.tokens for part in self.halves):
            raise CorpusError(
                "the texts are too short to tune on one part and evaluate on another: add more "
                "text, ideally dozens of documents"
            )

    def _begin(self, memory: Memory, neighbors: Neighbors) -> None:
        """Makes the grids; the first neighbors decide which temperatures are tried."""
        stored, largest = self.stored_settings, memory.config.k
        stored_k = min(largest, stored.k)
        grid = Grid(
            tuple(sorted({*powers_up_to(largest), stored_k})),
            temperatures_around(spread(neighbors), stored.temperature),
            tuple(sorted({*LMBDAS, stored.lmbda})),
        )
        self.halves = GridLikelihood(grid, memory.weighing), HeldOut(grid, memory.weighing)
        if self.fits_gate:
            self.gathered = Gathered(grid.ks), Gathered(grid.ks)
        self.stored = self.halves
        weighing = Weighing.of(
            memory.config.with_given(**self._ungridded()), memory.weighing.shares
        )
        if weighing != memory.weighing:
            grid = Grid((stored_k,), (stored.temperature,), (stored.lmbda,))
            self.stored = GridLikelihood(grid, weighing), HeldOut(grid, weighing)

    def _ungridded(self) -> Any:
        """The datastore's settings that the grid does not vary."""
        names = set(stored_names()) - {field.name for field in fields(Choice)}
        return {name: getattr(self.stored_settings, name) for name in names}

    def _add(self, number: int, text: Text, scored: TokenScores, neighbors: Neighbors) -> None:
        """Adds tokens to one of the halves, the second of which is kept by cells."""
        documents = text.documents_at(scored.places)
        inside = scored.places - np.array(text.starts)[documents]
        keep: Callable[[torch.Tensor], None] | None = None
        if self.gathered:
            self.gathered[number].add(scored, neighbors, documents)
            keep = self.gathered[number].keep
        for parts in (self.halves,) if self.stored is self.halves else (self.halves, self.stored):
            if number == 0:
                parts[0].add(neighbors, scored.targets, scored.log_p_lm, keep)
            else:
                parts[1].add_by_cell(documents, inside, neighbors, scored, keep)
            keep = None

    def place(self) -> tuple[int, int, int]:
        """The indices of the datastore's settings in their grid; its largest k at most."""
        grid, stored = self.stored[0].grid, self.stored_settings
        return (
            grid.ks.index(min(stored.k, grid.ks[-1])),
            grid.temperatures.index(stored.temperature),
            grid.lmbdas.index(stored.lmbda),
        )


def _edges(place: tuple[int, int, int], grid: Grid) -> tuple[str, ...]:
    """Names the settings whose best value might lie beyond those tried."""
    names = []
    if len(grid.ks) > 1 and place[0] == len(grid.ks) - 1:
        names.append("k")
    if grid.lmbdas[place[2]] > 0.0 and place[1] in (0, len(grid.temperatures) - 1):
        names.append("temperature")
    return tuple(names)
