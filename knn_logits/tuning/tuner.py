"""`tune`: thousands of settings from one pass and one search, and what the best is worth.

The distances of a token's neighbors are the same for every setting, so they are searched once,
used for all settings while they are at hand, and forgotten: memory does not grow with the text.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from knn_logits.build.corpus import Document
from knn_logits.build.progress import Progress, no_progress
from knn_logits.capture.forward import evaluating
from knn_logits.combined import Stores, open_stores
from knn_logits.config import DEFAULT_K, WindowConfig
from knn_logits.datastore.manifest import SettingsRecord
from knn_logits.errors import ConfigError, CorpusError
from knn_logits.evaluation.opening import Bench, open_bench
from knn_logits.evaluation.perplexity import describe, searched
from knn_logits.evaluation.texts import Text, Texts
from knn_logits.gating.learned import FEW
from knn_logits.neighbors import Neighbors
from knn_logits.scoring.likelihood import (
    LMBDAS,
    Choice,
    Grid,
    GridLikelihood,
    powers_up_to,
    spread,
    temperatures_around,
)
from knn_logits.scoring.text_pass import TokenScores
from knn_logits.tuning.gates import GateKind, GateTuning, Gathered, SkipKind, Wanted, fit
from knn_logits.tuning.parts import Bools, Halves, whole_or_middle
from knn_logits.tuning.writing import write_settings


@dataclass(frozen=True)
class Part:
    """One part of the text.

    Attributes:
        documents: Whole documents in it; 1 where it is a half of the only one.
        tokens: Tokens scored.
        lm: Perplexity of the model alone.
        before: Perplexity of the mixture under the settings the datastore has.
        perplexity: Perplexity under the chosen settings.
    """

    documents: int
    tokens: int
    lm: float
    before: float
    perplexity: float


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`.

    Attributes:
        k: Neighbors a query, chosen.
        lmbda: Weight of the neighbors, chosen.
        temperature: Of the softmax over the neighbors, chosen.
        chosen_on: The part that the settings were chosen on.
        held_out: The part that had no say in the choice; the numbers to trust.
        at_the_edge: Names of settings whose best value is the largest or smallest tried.
        grid: The settings tried.
        perplexities: float64 [ks, temperatures, lmbdas], on the part they were chosen on.
        held_out_perplexities: The same on the other part.
        place: The choice's place in the grid.
        settings: Model, datastore, windows: what the numbers hold for.
        seconds: Of the pass over the texts, loading left out.
        gate: The gate that was fitted, if one was asked for, and what it is worth.
        held_out_documents: Numbers of the documents held out, in the order they were read; empty
            for halves of a single one.
    """

    k: int
    lmbda: float
    temperature: float
    chosen_on: Part
    held_out: Part
    at_the_edge: tuple[str, ...]
    grid: Grid
    perplexities: npt.NDArray[np.float64]
    held_out_perplexities: npt.NDArray[np.float64]
    place: tuple[int, int, int]
    settings: dict[str, Any]
    seconds: float
    gate: GateTuning | None = None
    held_out_documents: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """What was chosen and what it is worth, as JSON."""
        return {
            "lmbda": self.lmbda,
            "temperature": self.temperature,
            "k": self.k,
            "perplexity": self.held_out.perplexity,
            "perplexity_lm": self.held_out.lm,
            "perplexity_before": self.held_out.before,
            "settings_tried": self.grid.settings,
            "seconds": round(self.seconds, 3),
            "tokens": self.chosen_on.tokens + self.held_out.tokens,
            "chosen_on": asdict(self.chosen_on),
            "held_out": asdict(self.held_out),
            "at_the_edge": list(self.at_the_edge),
            "settings": self.settings,
            "gate": self.gate.to_dict() if self.gate is not None else None,
        }

    def numbers(self) -> dict[str, Any]:
        """The heat map and the curve as JSON, everything else beside them."""
        place_k = self.place[0]
        return {
            **self.to_dict(),
            "ks": list(self.grid.ks),
            "temperatures": list(self.grid.temperatures),
            "lmbdas": list(self.grid.lmbdas),
            "perplexity_by_temperature_and_lmbda": _rounded(self.perplexities[place_k]),
            "perplexity_by_k": _rounded(self.perplexities.min(axis=(1, 2))),
            "held_out_perplexity_by_k": _rounded(np.array(self.held_out_by_k())),
        }

    def held_out_by_k(self) -> list[float]:
        """For each k, the held-out perplexity of what was best for it on the other part."""
        flat = self.perplexities.reshape(len(self.grid.ks), -1)
        held = self.held_out_perplexities.reshape(len(self.grid.ks), -1)
        return [float(row[best]) for row, best in zip(held, flat.argmin(axis=1), strict=True)]


def _rounded(numbers: npt.NDArray[np.float64]) -> Any:
    """Nested lists with None for what JSON has no number for."""
    if numbers.ndim > 1:
        return [_rounded(row) for row in numbers]
    return [float(f"{one:.6g}") if np.isfinite(one) else None for one in numbers.tolist()]


def tune(
    model: nn.Module,
    tokenizer: Any,
    datastore: Stores,
    texts: Texts | Iterable[Document | str],
    *,
    k: int | None = None,
    refine: bool = False,
    nprobe: int | None = None,
    window: WindowConfig | None = None,
    concatenate: bool | None = None,
    batch_tokens: int | None = None,
    device: torch.device | str = "cpu",
    threads: int | None = None,
    check: bool = True,
    gate: GateKind | None = None,
    skip: float | None = None,
    skip_by: SkipKind = "learned",
    samples: int = 1000,
    seed: int = 0,
    write: bool = False,
    progress: Progress = no_progress,
) -> Tuning:
    """Chooses k, λ and temperature for a datastore by the likelihood of texts.

    The documents are divided into two parts of like size. Settings are chosen on one part; what
    they are worth is said of the other. A single document is cut in the middle.

    Khandelwal et al. (2020), "Generalization through Memorization", section 3, choose λ on
    validation text; the temperature is that of Khandelwal et al. (2021), equation 2.

    Args:
        model: The model that built the datastore.
        tokenizer: Its tokenizer.
        datastore: A datastore or its folder.
        texts: Documents like those the model will meet, not those of the datastore; read once.
        k: The largest k tried; None takes 1,024, or the datastore's where that is larger.
        refine: Recompute distances from the stored keys.
        nprobe: Inverted lists visited a query; None keeps the index's.
        window: Tokens seen at once, and the stride; None takes the datastore's.
        concatenate: Join the documents into one stream; None does what the datastore did.
        batch_tokens: Tokens a forward pass; None chooses by device and vocabulary.
        device: Where to search.
        threads: OpenMP threads for searches.
        check: Compare the model with the datastore first.
        gate: Also fit a gate, at the k and temperature chosen: "distance" or "learned"; "meta-k",
            which chooses among all k tried; "constant" is the best number, for a gate that skips.
            Keeps some 400 bytes a token.
        skip: Share of the tokens that the gate leaves unsearched, at least 0 and below 1.
        skip_by: Chosen by a "learned" network, or by the model's "confidence".
        samples: Resamples of the bootstrap over documents, for the gate.
        seed: Of the bootstrap, and of the gate's first weights.
        write: Store the choice in the datastore, the gate with it; a gate that was stored before
            is gone.
        progress: Told how many tokens are scored, of those read so far.

    Returns:
        The choice, and what it and all others are worth.

    Raises:
        ConfigError: when a setting is out of its range, or several datastores are to be written.
        CorpusError: when a part has no token that follows another.
        MismatchError: when model or tokenizer are not the datastore's.
    """
    stores = open_stores(datastore)
    if not stores:
        raise ConfigError("no datastore is given, and only one has settings to tune")
    if write and len(stores) > 1:
        raise ConfigError("settings are written into one datastore; tune each on its own")
    own = stores[0].manifest.settings
    wanted = Wanted.of(gate, skip, skip_by)
    bench = open_bench(
        model,
        tokenizer,
        stores,
        k=k or max(DEFAULT_K, own.k),
        # A gate that the datastore has takes no part.
        lmbda=own.lmbda,
        refine=refine,
        nprobe=nprobe,
        window=window,
        concatenate=concatenate,
        batch_tokens=batch_tokens,
        device=device,
        threads=threads,
        check=check,
    )
    started = time.monotonic()
    gathered = (Gathered(wanted), Gathered(wanted)) if wanted is not None else None
    one, other, halves = _pass(bench, own, texts, progress, gathered)
    assert bench.retriever is not None
    metric = bench.retriever.metric
    # A gate reads so many of the nearest; with fewer it would read others than it was fitted on.
    # One that chooses among the ks needs the largest.
    least = 1 if wanted is None else one.grid.ks[-1] if wanted.kind == "meta-k" else FEW
    best = one.best(least_k=min(least, one.grid.ks[-1]))
    fitted = None
    if gathered is not None:
        progress("gate", 0, None)
        fitted = fit(*gathered, metric, best, samples=samples, seed=seed)
    seconds = time.monotonic() - started
    before = _place(one.grid, own)
    chosen_on, held_out = (
        Part(number, part.tokens, *_perplexities(part, before, best.place))
        for part, number in zip((one, other), halves.counts(), strict=True)
    )
    settings = describe(bench)
    for name in ("k", "lmbda", "temperature"):
        settings.pop(name, None)
    result = Tuning(
        k=best.k,
        lmbda=best.lmbda,
        temperature=best.temperature,
        chosen_on=chosen_on,
        held_out=held_out,
        at_the_edge=_edges(best, one.grid),
        grid=one.grid,
        perplexities=one.perplexities().numpy(),
        held_out_perplexities=other.perplexities().numpy(),
        place=best.place,
        settings=settings,
        seconds=seconds,
        gate=fitted,
        held_out_documents=halves.held_out(),
    )
    if write:
        found = fitted.gate if fitted is not None else None
        write_settings(stores[0], result.k, result.lmbda, result.temperature, found)
    return result


def _pass(
    bench: Bench,
    own: SettingsRecord,
    texts: Texts | Iterable[Document | str],
    progress: Progress,
    gathered: tuple[Gathered, Gathered] | None = None,
) -> tuple[GridLikelihood, GridLikelihood, Halves]:
    documents, middle = whole_or_middle(bench, texts)
    text = Text(
        "tuning",
        documents,
        bench.tokenizer,
        bench.window,
        bench.stride,
        concatenate=bench.concatenate,
    )
    halves = Halves(text, middle)
    assert bench.retriever is not None
    parts: list[GridLikelihood] = []
    first = 1 if gathered is None or gathered[0].wanted.kind == "meta-k" else FEW
    done = 0
    progress("tuning", 0, None)
    with evaluating(bench.model):
        for scored, neighbors in searched(bench, text.pieces()):
            assert neighbors is not None
            if not parts:
                metric = bench.retriever.metric
                largest = bench.retriever.config.k
                grid = Grid(
                    tuple(sorted({*powers_up_to(largest, first), min(largest, own.k)})),
                    temperatures_around(spread(neighbors, metric), own.temperature),
                    tuple(sorted({*LMBDAS, own.lmbda})),
                )
                parts = [GridLikelihood(grid, metric), GridLikelihood(grid, metric)]
            second = halves.second(scored.places)
            for number, rows in enumerate((~second, second)):
                if not rows.any():
                    continue
                some, near = _rows(scored, neighbors, rows)
                keep = None
                if gathered is not None:
                    keep = gathered[number].keep
                    documents_at = text.documents_at(some.places)
                    gathered[number].add(some, near, metric, documents_at, grid.ks)
                parts[number].add(near, some.targets, some.log_p_lm, keep)
            done += len(second)
            progress("tuning", done, text.tokens)
    if not parts or not all(part.tokens for part in parts):
        raise CorpusError(
            "the texts are too short to choose on one part and report on another: give more, at "
            "best dozens of documents"
        )
    return parts[0], parts[1], halves


def _rows(scored: TokenScores, neighbors: Neighbors, rows: Bools) -> tuple[TokenScores, Neighbors]:
    if rows.all():
        return scored, neighbors
    chosen = torch.from_numpy(rows)
    return scored[chosen], neighbors[chosen.to(neighbors.ids.device)]


def _place(grid: Grid, own: SettingsRecord) -> tuple[int, int, int]:
    """The place of a datastore's own settings; a larger k than the largest tried is that one."""
    k = min(own.k, grid.ks[-1])
    return (
        grid.ks.index(k),
        grid.temperatures.index(own.temperature),
        grid.lmbdas.index(own.lmbda),
    )


def _perplexities(
    part: GridLikelihood, before: tuple[int, int, int], best: tuple[int, int, int]
) -> tuple[float, float, float]:
    found = part.perplexities()
    lm = float(np.exp(-part.lm / part.tokens))
    return lm, float(found[before]), float(found[best])


def _edges(best: Choice, grid: Grid) -> tuple[str, ...]:
    """Settings whose best value might lie beyond those tried."""
    found = []
    if len(grid.ks) > 1 and best.place[0] == len(grid.ks) - 1:
        found.append("k")
    if best.lmbda > 0.0 and best.place[1] in (0, len(grid.temperatures) - 1):
        found.append("temperature")
    return tuple(found)
