"""`tune` tries thousands of settings in one pass with one search, and reports the best."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import nn
from typing_extensions import Unpack

from knn_logits.corpus.documents import Document
from knn_logits.engine.forward import evaluating
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.measure.bench import Bench, BenchSettings, open_bench
from knn_logits.measure.confidence import Verdict, compared
from knn_logits.measure.likelihood import LMBDAS, Choice, Grid, spread, temperatures_around
from knn_logits.measure.overlap import Overlap, OverlapCheck
from knn_logits.measure.perplexity import describe, searched
from knn_logits.measure.text_pass import Texts
from knn_logits.measure.tune.halves import (
    NO_GATE,
    Division,
    GateTuning,
    Half,
    check_gate,
    fit_gate,
    halved,
)
from knn_logits.mixture.gates.gate import FittedGate
from knn_logits.mixture.gates.stored import gate_arrays
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.vote import Weighing
from knn_logits.progress import Progress, no_progress
from knn_logits.search.combined import Stores, open_stores
from knn_logits.search.neighbors import Neighbors, powers_up_to
from knn_logits.settings.config import DEFAULT_K, MOST_SEED, whole_number
from knn_logits.settings.registry import stored_names
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import begin
from knn_logits.store.manifest import read_manifest
from knn_logits.store.records import GateRecord, SettingsRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """One part of the text."""

    documents: int  # number of whole documents in it. It is 1 if the part is half of one document
    tokens: int  # number of scored tokens
    lm: float  # perplexity of the model alone
    before: float  # perplexity of the mixture under the datastore's settings
    perplexity: float  # perplexity of the mixture under the chosen settings


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`.

    Attributes:
        chosen: The chosen settings. `k`, `lmbda` and `temperature` are also attributes.
        chosen_on: The part that the settings were chosen on.
        held_out: The other part, whose numbers can be trusted.
        grid: The settings that were tried.
        settings: The conditions of the numbers: model, datastore, windows.
        seconds: Seconds that the pass over the texts took, without loading.
        gate: The gate that was fitted and its results, if a gate was asked for.
        held_out_documents: Numbers of the held-out documents, in the order of reading; empty for
            halves of a single document.
        verdict: The comparison of the choice with the stored settings, on the held-out part.
        overlap: How much of the text the datastore holds; None if it was not checked.
        written: Whether the choice was stored in the datastore.
        refused: Why the choice was not stored, if it was to be.
    """

    chosen: SettingsRecord
    chosen_on: Part
    held_out: Part
    grid: Grid
    settings: dict[str, Any]
    seconds: float
    gate: GateTuning | None = None
    held_out_documents: tuple[int, ...] = ()
    verdict: Verdict | None = None
    overlap: Overlap | None = None
    written: bool = False
    refused: str | None = None

    @property
    def k(self) -> int:
        """The chosen number of neighbors of each query."""
        return self.chosen.k

    @property
    def lmbda(self) -> float:
        """The chosen weight of the neighbors."""
        return self.chosen.lmbda

    @property
    def temperature(self) -> float:
        """The chosen temperature of the softmax over the neighbors."""
        return self.chosen.temperature

    def to_dict(self) -> dict[str, Any]:
        """Returns the choice and its perplexities, for JSON."""
        plain = ("settings", "written", "refused")
        parts = {name: getattr(self, name) for name in ("gate", "verdict", "overlap")}
        return {
            **{name: getattr(self.chosen, name) for name in stored_names()},
            **{name: getattr(self, name) for name in plain},
            **{name: part and part.to_dict() for name, part in parts.items()},
            "perplexity": self.held_out.perplexity,
            "perplexity_lm": self.held_out.lm,
            "perplexity_before": self.held_out.before,
            "settings_tried": self.grid.settings,
            "seconds": round(self.seconds, 3),
            "tokens": self.chosen_on.tokens + self.held_out.tokens,
            "chosen_on": asdict(self.chosen_on),
            "held_out": asdict(self.held_out),
        }


def refusal(result: Tuning, stored: SettingsRecord) -> str | None:
    """Says why a result should not replace the stored settings; None if it may."""
    overlap, verdict, gate = result.overlap, result.verdict, result.gate
    if overlap is not None and overlap.held:
        return (
            f"{overlap}, and settings chosen on such text are bad for any other; give text that is "
            "not in the datastore, or --allow-overlap (allow_overlap=True)"
        )
    assert verdict is not None
    forced = "; --force (force=True) writes it anyway"
    if gate is not None:
        if not gate.verdict.better:
            return gate.verdict.reason("the gate", "the best number") + forced
        if verdict.ratio <= 1.0:
            return None
    same = all(getattr(result.chosen, name) == getattr(stored, name) for name in stored_names())
    if verdict.better or same:
        return None
    return verdict.reason("the choice", "the stored settings") + forced


def write_settings(
    store: Datastore,
    record: SettingsRecord,
    gate: FittedGate | None = None,
    *,
    judged: GateRecord | None = None,
    keep_gate: bool = False,
) -> None:
    """Stores settings in a datastore, and a gate with the record of the build that fitted it."""
    with begin(store.folder.resolve(), "tune", {}) as job:
        # The manifest is read again, since another process may have changed the datastore.
        if keep_gate:
            job.commit(read_manifest(store.folder), settings=record)
            return
        job.drop("gate")
        if gate is not None:
            job.write("gate", *gate_arrays(gate))
        manifest = read_manifest(store.folder)
        job.commit(manifest, without={"gate"}, settings=record, gate=judged)


def tune(
    model: nn.Module,
    tokenizer: Any,
    datastore: Memory | Stores,
    texts: Texts | Iterable[Document | str],
    *,
    gate: str | None = None,
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
    their perplexity is measured on the other. A single document is cut in the middle. A held-out
    token takes about 600 bytes of memory.

    Khandelwal et al. (2020), "Generalization through Memorization", section 3, choose λ on
    validation text. The temperature is that of Khandelwal et al. (2021), equation 2.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A `Memory` of this model, or a datastore or its folder.
        texts: Documents that resemble those the model will meet, and are not in the datastore.
            They are read once.
        gate: "meta-k" also fits a `MetaKGate` at the chosen temperature. It reads the neighbors of
            the largest k that is tried. "none" removes a stored gate.
        samples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap, and of the gate's first weights.
        write: Store the choice in the datastore, and the gate with it. A stored gate stays if no
            gate is asked for. The choice is stored only if a bootstrap of the held-out part shows
            that it is significantly better than the stored settings. Otherwise `refused` of the
            result says why.
        force: Store the choice even then.
        allow_overlap: Do not check whether the datastore holds the texts. With the check, a
            warning tells of such texts, and a choice on them is not stored.
        progress: A callback that is told how many of the tokens read so far are scored.
        settings: `k` is the largest that is tried. Its default is 1,024, or the datastore's if
            that is larger. `open_bench` explains `window`, `concatenate`, `batch_tokens`
            and `cache`.
            `Memory` explains `refine`, `nprobe`, `device` and so on.

    Returns:
        The choice, and its perplexity on both parts.

    Raises:
        ConfigError: when a setting is out of its range, or several datastores are given.
        CorpusError: when a part has no token that follows another.
        MismatchError: when model or tokenizer are not the datastore's.
    """
    bootstrap = {
        "samples": whole_number("samples", samples, 0),
        "seed": whole_number("seed", seed, 0, MOST_SEED),
    }
    check_gate(gate)
    stores = datastore.stores if isinstance(datastore, Memory) else open_stores(datastore)
    if len(stores) > 1:
        raise ConfigError("settings belong to one datastore: tune each datastore separately")
    stored, fits_gate = stores[0].manifest.settings, gate not in (None, NO_GATE)
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if fits_gate and given.pop("cache", None):
        logger.warning("the cache is not used: a gate is fitted to the model's distributions")
    # With a number for λ, the datastore's own gate is not used.
    preset = {"k": max(DEFAULT_K, stored.k), "lmbda": stored.lmbda}
    bench = open_bench(model, tokenizer, datastore, **{**preset, **given})
    assert bench.memory is not None
    started = time.monotonic()
    check = None if allow_overlap else OverlapCheck(stores, bench.memory.config.exclude)
    division, first, other = _read(bench, texts, check, stored, fits_gate, progress)
    # A gate needs as many neighbors as it was fitted on.
    grid = first.grid.grid
    best = first.grid.best(least_k=grid.ks[-1] if fits_gate else 1)
    kept, fitted = other.tokens(best.place[1]), None
    if fits_gate:
        progress("gate", 0, None)
        metric = bench.memory.retriever.metric
        fitted = fit_gate(first.tokens(best.place[1]), kept, grid.ks, metric, best, **bootstrap)
    gains = kept.mixed(kept.by_k[:, best.place[0]], best.lmbda)
    gains = gains - kept.mixed(kept.stored, stored.lmbda)
    conditions, names = describe(bench), stored_names()
    config = bench.memory.config.with_given(
        k=best.k, lmbda=best.lmbda, temperature=best.temperature
    )
    documents = division.counts()
    result = Tuning(
        chosen=SettingsRecord(
            **config.stored_values(),
            calibrated=True,
            tuned=True,
            no_repeat_ngram_size=bench.memory.loop_size,
        ),
        chosen_on=_part(documents[0], first, best),
        held_out=_part(documents[1], other, best),
        grid=grid,
        settings={name: conditions[name] for name in conditions if name not in names},
        seconds=time.monotonic() - started,
        gate=fitted,
        held_out_documents=division.held_out(),
        verdict=compared(gains, kept.documents, **bootstrap),
        overlap=None if check is None else check.result(),
    )
    if result.overlap is not None and result.overlap.notable:
        logger.warning("%s, so the chosen settings will do worse on other text", result.overlap)
    return _stored(stores[0], result, gate, force=force) if write else result


def _stored(store: Datastore, result: Tuning, gate: str | None, *, force: bool) -> Tuning:
    """Stores the choice, unless something speaks against it."""
    refused = None if force else refusal(result, store.manifest.settings)
    if refused is not None:
        logger.warning("the settings were not stored: %s", refused)
        return replace(result, refused=refused)
    keep_gate = gate is None and store.manifest.file("gate") is not None
    fitted = None if result.gate is None else result.gate.gate
    write_settings(store, result.chosen, fitted, keep_gate=keep_gate)
    if keep_gate:
        logger.warning(
            "%s keeps its gate, which was fitted to the old settings and applies unless lmbda is "
            "set: refit it with --gate meta-k, or remove it with --gate none",
            store.folder,
        )
    return replace(result, written=True)


def _read(
    bench: Bench,
    texts: Texts | Iterable[Document | str],
    check: OverlapCheck | None,
    stored: SettingsRecord,
    fits_gate: bool,
    progress: Progress,
) -> tuple[Division, Half, Half]:
    """Scores the texts under all settings, and under those that are stored."""
    memory = bench.memory
    assert memory is not None
    # The stored settings that the grid does not vary.
    names = set(stored_names()) - {field.name for field in fields(Choice)}
    others: Any = {name: getattr(stored, name) for name in names}
    if not memory.config.counts_shared:
        # The stored settings may weigh features that a search under these leaves out.
        bench = replace(bench, memory=memory.asked(**others))
    weighing = Weighing.of(memory.config.with_given(**others))
    text, division = halved(bench, texts, check)
    halves: list[Half] = []
    done = 0
    progress("tuning", 0, None)
    with evaluating(bench.model):
        for scored, neighbors in searched(bench, text.pieces()):
            assert neighbors is not None
            if not halves:
                grids = _grids(memory, stored, neighbors)
                halves = [
                    Half(
                        grids[0],
                        memory.weighing,
                        grids[1],
                        weighing,
                        keeps=fits_gate or held_out,
                        fits_gate=fits_gate,
                    )
                    for held_out in (False, True)
                ]
            second = division.second(scored.places)
            for half, rows in zip(halves, (~second, second), strict=True):
                if rows.any():
                    chosen = torch.from_numpy(rows)
                    part, near = scored[chosen], neighbors[chosen.to(neighbors.ids.device)]
                    half.add(part, near, text.documents_at(part.places))
            done += len(second)
            progress("tuning", done, None)
    if not halves or not all(half.grid.tokens for half in halves):
        raise CorpusError(
            "the texts are too short to tune on one part and evaluate on another: add more "
            "text, ideally dozens of documents"
        )
    first, other = halves
    return division, first, other


def _grids(memory: Memory, stored: SettingsRecord, neighbors: Neighbors) -> tuple[Grid, Grid]:
    """The settings to try, around the distances of the first neighbors, and the stored ones."""
    largest = memory.config.k
    stored_k = min(largest, stored.k)
    tried = Grid(
        tuple(sorted({*powers_up_to(largest), stored_k})),
        temperatures_around(spread(neighbors), stored.temperature),
        tuple(sorted({*LMBDAS, stored.lmbda})),
    )
    return tried, Grid((stored_k,), (stored.temperature,), (stored.lmbda,))


def _part(documents: int, half: Half, best: Choice) -> Part:
    perplexity = float(half.grid.perplexities()[best.place])
    tokens = half.grid.tokens
    return Part(documents, tokens, half.grid.lm_perplexity, half.before, perplexity)
