"""`tune` tries thousands of settings in one pass with one search, and reports the best."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from typing_extensions import Unpack

from knn_logits.arrays import Array, Bools, Floats
from knn_logits.corpus.documents import Document, as_documents
from knn_logits.engine.forward import evaluating
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.measure.bench import (
    Bench,
    BenchSettings,
    held_share,
    is_held,
    open_bench,
    overlap_words,
)
from knn_logits.measure.likelihood import (
    LMBDAS,
    Choice,
    Grid,
    GridLikelihood,
    spread,
    temperatures_around,
)
from knn_logits.measure.perplexity import searched
from knn_logits.measure.text_pass import Text, TokenScores
from knn_logits.metrics import Metric
from knn_logits.mixture.gates.gate import FittedGate
from knn_logits.mixture.gates.meta_k import MetaKGate, fit_meta_k_gate, meta_k_features
from knn_logits.mixture.memory import Memory
from knn_logits.progress import Progress, no_progress
from knn_logits.search.combined import Stores, open_stores
from knn_logits.search.neighbors import Neighbors, powers_up_to
from knn_logits.settings.config import DEFAULT_K
from knn_logits.settings.registry import stored_names
from knn_logits.store.datastore import Datastore
from knn_logits.store.job import begin
from knn_logits.store.manifest import read_manifest
from knn_logits.store.records import SettingsRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """One half of the text."""

    tokens: int  # number of scored tokens
    lm: float  # perplexity of the model alone
    before: float  # perplexity of the mixture under the datastore's k, λ and temperature
    perplexity: float  # perplexity of the mixture under the chosen settings


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`.

    Attributes:
        chosen: The chosen settings, such as `k`, `lmbda` and `temperature`.
        chosen_on: The half that the settings were chosen on.
        held_out: The other half, whose numbers can be trusted.
        grid: The settings that were tried.
        seconds: Seconds that the pass over the texts took, without loading.
        gate: The gate that was fitted, if a gate was asked for.
        gate_perplexity: The perplexity with it on the half that it was not fitted on.
        overlap: The share of the text's tokens that the datastore holds; None if it was not
            checked.
    """

    chosen: SettingsRecord
    chosen_on: Part
    held_out: Part
    grid: Grid
    seconds: float
    gate: MetaKGate | None = None
    gate_perplexity: float | None = None
    overlap: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the choice and its perplexities, for JSON."""
        gate = self.gate and {"kind": self.gate.kind, "perplexity": self.gate_perplexity}
        return {
            **{name: getattr(self.chosen, name) for name in stored_names()},
            "gate": gate,
            "perplexity": self.held_out.perplexity,
            "overlap": self.overlap,
            "settings_tried": self.grid.settings,
            "seconds": round(self.seconds, 3),
            "chosen_on": asdict(self.chosen_on),
            "held_out": asdict(self.held_out),
        }


def write_settings(
    store: Datastore, record: SettingsRecord, gate: FittedGate | None = None
) -> None:
    """Stores settings and a gate in place of those of a datastore; without a gate, none is left."""
    with begin(store.folder.resolve(), "tune", {}) as job:
        job.drop("gate")
        if gate is not None:
            job.write("gate", gate.to_arrays(), gate.about)
        # The manifest is read again, since another process may have changed the datastore.
        manifest = read_manifest(store.folder)
        job.commit(manifest, without={"gate"}, settings=record, gate=None)


def tune(
    model: nn.Module,
    tokenizer: Any,
    datastore: Memory | Stores,
    texts: Iterable[Document | str],
    *,
    gate: str | None = None,
    write: bool = False,
    allow_overlap: bool = False,
    progress: Progress = no_progress,
    **settings: Unpack[BenchSettings],
) -> Tuning:
    """Chooses k, λ and temperature for a datastore by the likelihood of texts.

    Half of the documents, drawn at random, or the second half of a single one, is held out:
    settings are chosen on the others, and their perplexity is measured on it. A token takes about
    600 bytes of memory if a gate is fitted.

    Khandelwal et al. (2020), "Generalization through Memorization", section 3, choose λ on
    validation text. The temperature is that of Khandelwal et al. (2021), equation 2.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A `Memory` of this model, or a datastore or its folder.
        texts: Documents that resemble those the model will meet, and are not in the datastore.
            They are read once.
        gate: "meta-k" also fits a `MetaKGate` at the chosen temperature. It reads the neighbors of
            the largest k that is tried.
        write: Store the choice in the datastore. The datastore then uses what was tuned: the gate
            that was fitted, or the chosen constant λ. A gate that it had before is removed.
        allow_overlap: Do not check whether the datastore holds the texts. With the check, a
            warning tells of such texts, and a choice on them is not stored.
        progress: A callback that is told how many of the tokens read so far are scored.
        settings: `k` is the largest that is tried. Its default is 1,024, or the datastore's if
            that is larger. `open_bench` explains `window`, `concatenate`, `batch_tokens`
            and `cache`.
            `Memory` explains `refine`, `nprobe`, `device` and so on.

    Returns:
        The choice, and its perplexity on both halves.

    Raises:
        ConfigError: when a setting is out of its range, or several datastores are given.
        CorpusError: when a half has no token that follows another, or a choice was to be stored
            that was made on texts of the datastore, or does worse than the stored settings on the
            held-out half.
        MismatchError: when model or tokenizer are not the datastore's.
    """
    if gate not in (None, MetaKGate.kind):
        raise ConfigError(f"the gate must be {MetaKGate.kind}, not {gate!r}")
    bench, stored = _opened(model, tokenizer, datastore, gate, settings)
    memory = bench.memory
    assert memory is not None
    started = time.monotonic()
    documents = _at_least_two(texts)
    text = bench.text(documents)
    second = np.random.default_rng(0).permutation(len(documents)) % 2 == 1
    first, other = _read(bench, text, second, stored, gate, progress)
    # A gate needs as many neighbors as it was fitted on.
    best = first.grid.best(least_k=1 if gate is None else first.grid.grid.ks[-1])
    fitted, gate_perplexity = None, None
    if gate is not None:
        progress("gate", 0, None)
        fitted, gate_perplexity = _fitted(first, other, best, memory.retriever.metric)
    chosen = memory.config.with_given(k=best.k, lmbda=best.lmbda, temperature=best.temperature)
    result = Tuning(
        chosen=SettingsRecord(
            **chosen.stored_values(),
            calibrated=True,
            tuned=True,
            no_repeat_ngram_size=memory.loop_size,
        ),
        chosen_on=first.part(stored, best),
        held_out=other.part(stored, best),
        grid=first.grid.grid,
        seconds=time.monotonic() - started,
        gate=fitted,
        gate_perplexity=gate_perplexity,
        overlap=None if allow_overlap else held_share(text, memory.stores, memory.config.exclude),
    )
    if result.overlap is not None and is_held(result.overlap):
        held = overlap_words(result.overlap)
        if write:
            raise CorpusError(
                f"{held}, so the chosen settings were not stored: give text that is not in the "
                "datastore, or --allow-overlap (allow_overlap=True)"
            )
        logger.warning(f"{held}, so the chosen settings will do worse on other text")
    if write:
        before, now = result.held_out.before, gate_perplexity or result.held_out.perplexity
        if now > before:
            raise CorpusError(
                f"on the held-out half the perplexity is {now:.2f} with the choice and "
                f"{before:.2f} with the stored settings, so the choice was not stored: give more "
                "text"
            )
        write_settings(memory.stores[0], result.chosen, fitted)
    return result


def _opened(
    model: nn.Module,
    tokenizer: Any,
    datastore: Memory | Stores,
    gate: str | None,
    settings: BenchSettings,
) -> tuple[Bench, SettingsRecord]:
    """Opens a datastore with a constant λ, and returns its settings, too."""
    stores = datastore.stores if isinstance(datastore, Memory) else open_stores(datastore)
    if len(stores) > 1:
        raise ConfigError("settings belong to one datastore: tune each datastore separately")
    stored = stores[0].manifest.settings
    given: Any = {name: value for name, value in settings.items() if value is not None}
    if gate is not None and given.pop("cache", None):
        logger.warning("the cache is not used: a gate is fitted to the model's distributions")
    preset = {"k": max(DEFAULT_K, stored.k), "lmbda": stored.lmbda}
    return open_bench(model, tokenizer, datastore, **{**preset, **given}), stored


def _at_least_two(texts: Iterable[Document | str]) -> list[Document]:
    """The documents; a single one is cut in the middle."""
    documents = list(as_documents(texts))
    if len(documents) == 1 and documents[0].source is None:
        text = documents[0].text
        middle = len(text) // 2
        return [Document(part, str(n)) for n, part in enumerate((text[:middle], text[middle:]))]
    return documents


def _read(
    bench: Bench,
    text: Text,
    second: Bools,
    stored: SettingsRecord,
    gate: str | None,
    progress: Progress,
) -> tuple[Half, Half]:
    """Scores a text under all settings; `second`, bool [documents], divides its documents."""
    memory = bench.memory
    assert memory is not None
    halves: list[Half] = []
    done = 0
    progress("tuning", 0, None)
    with evaluating(bench.model):
        for scored, neighbors in searched(bench, text.pieces()):
            assert neighbors is not None
            if not halves:
                # The stored settings are tried as well. The distances of the first neighbors decide
                # which temperatures are tried.
                largest = memory.config.k
                grid = Grid(
                    tuple(sorted({*powers_up_to(largest), min(largest, stored.k)})),
                    temperatures_around(spread(neighbors), stored.temperature),
                    tuple(sorted({*LMBDAS, stored.lmbda})),
                )
                likelihoods = (GridLikelihood(grid, memory.weighing) for _ in range(2))
                halves = [Half(likelihood, gate is not None) for likelihood in likelihoods]
            held_out = second[text.documents_at(scored.places)]
            for half, rows in zip(halves, (~held_out, held_out), strict=True):
                if rows.any():
                    chosen = torch.from_numpy(rows)
                    half.add(scored[chosen], neighbors[chosen.to(neighbors.ids.device)])
            done += len(held_out)
            progress("tuning", done, None)
    if not halves or not all(half.grid.tokens for half in halves):
        raise CorpusError(
            "the texts are too short to tune on one half and evaluate on the other: add more "
            "text, ideally dozens of documents"
        )
    first, other = halves
    return first, other


class Half:
    """One half of a text: its likelihood under each setting, and its tokens if a gate is fitted."""

    def __init__(self, grid: GridLikelihood, fits_gate: bool) -> None:
        self.grid = grid
        self._fits_gate = fits_gate
        # Of each token `meta_k_features`, whether it has neighbors, log p_LM, and p_kNN of each k
        # and temperature.
        self._features: list[Array] = []
        self._found: list[Bools] = []
        self._lm: list[Floats] = []
        self._by_k: list[Floats] = []

    def add(self, scored: TokenScores, neighbors: Neighbors) -> None:
        """Adds tokens, while the model's scores of them are in memory."""
        if not self._fits_gate:
            self.grid.add(neighbors, scored.targets, scored.log_p_lm)
            return
        self.grid.add(
            neighbors,
            scored.targets,
            scored.log_p_lm,
            lambda table: self._by_k.append(table.numpy()),
        )
        for rows, log_p in scored.distributions.parts():
            part = neighbors[rows].to(log_p.device)
            features = meta_k_features(part, part.metric, log_p, self.grid.grid.ks)
            self._features.append(features.cpu().numpy())
        self._found.append(neighbors.mask.any(-1).cpu().numpy())
        self._lm.append(scored.log_p_lm.double().numpy())

    def tokens(self, best: Choice) -> tuple[Array, Bools, Floats]:
        """The tokens' features, whether they have neighbors, and log p of model and each k."""
        by_k = np.concatenate(self._by_k)[:, :, best.place[1]].astype(float)
        with np.errstate(divide="ignore"):
            log_p = np.column_stack([np.concatenate(self._lm), np.log(by_k)])
        return np.concatenate(self._features), np.concatenate(self._found), log_p

    def part(self, stored: SettingsRecord, best: Choice) -> Part:
        perplexities, grid = self.grid.perplexities(), self.grid.grid
        before = (
            grid.ks.index(min(grid.ks[-1], stored.k)),
            grid.temperatures.index(stored.temperature),
            grid.lmbdas.index(stored.lmbda),
        )
        return Part(
            self.grid.tokens,
            self.grid.lm_perplexity,
            float(perplexities[before]),
            float(perplexities[best.place]),
        )


def _fitted(first: Half, other: Half, best: Choice, metric: Metric) -> tuple[MetaKGate, float]:
    """Fits a gate to one half, and returns its perplexity on the other, too."""
    features, found, log_p = first.tokens(best)
    lm, by_k = log_p[found, 0], log_p[found, 1:]
    gate = fit_meta_k_gate(features[found], first.grid.grid.ks, lm, by_k, metric)
    features, found, log_p = other.tokens(best)
    shares = gate.at(torch.from_numpy(features)).double().numpy()
    mixed = np.where(found, np.logaddexp.reduce(shares + log_p, axis=1), log_p[:, 0])
    return gate, float(np.exp(-np.mean(mixed)))
