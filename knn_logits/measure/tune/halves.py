"""The halves of a text for `tune`: settings and a gate come from one, and the other judges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from knn_logits.arrays import Array, Bools, Floats, Ints
from knn_logits.corpus.documents import Document
from knn_logits.engine.tokens import special_tokens, token_blocks
from knn_logits.errors import ConfigError
from knn_logits.measure.bench import Bench
from knn_logits.measure.confidence import Verdict, compared
from knn_logits.measure.likelihood import Choice, Grid, GridLikelihood
from knn_logits.measure.overlap import OverlapCheck
from knn_logits.measure.text_pass import Text, Texts, TokenScores, texts_by_name
from knn_logits.metrics import Metric
from knn_logits.mixture.gates.meta_k import MetaKGate, fit_meta_k_gate, meta_k_features
from knn_logits.mixture.vote import Weighing
from knn_logits.search.neighbors import Neighbors


def halved(
    bench: Bench, texts: Texts | Iterable[Document | str], check: OverlapCheck | None = None
) -> tuple[Text, Division]:
    """Reads texts, and halves them by documents, or a single document in its middle."""
    documents = chain.from_iterable(texts_by_name(texts).values())
    first, middle = list(islice(documents, 2)), None
    if len(first) == 1:
        blocks = token_blocks(bench.tokenizer, first[0].text, special_tokens(bench.tokenizer))
        middle = sum(len(block) for block in blocks) // 2
    on_tokens = None if check is None else partial(check.add, "tuning")
    text = bench.text("tuning", chain(first, documents), on_tokens)
    return text, Division(text, middle)


class Division:
    """Assigns whole documents to two halves. The next document goes to the smaller half."""

    def __init__(self, text: Text, middle: int | None) -> None:
        self._text = text
        self._middle = middle
        self._seconds: list[bool] = []
        self._sizes = [0, 0]

    def second(self, places: Ints) -> Bools:
        """Tells whether each token is in the held-out half, bool [rows]."""
        if self._middle is not None:
            return np.asarray(places > self._middle)
        starts = self._text.starts
        # The sizes of the documents before each new one are known now.
        while len(self._seconds) < len(starts):
            number = len(self._seconds)
            if number:
                self._sizes[self._seconds[-1]] += starts[number] - starts[number - 1]
            self._seconds.append(self._sizes[1] < self._sizes[0])
        return np.array(self._seconds)[self._text.documents_at(places)]

    def held_out(self) -> tuple[int, ...]:
        """Numbers of the held-out documents; empty if the halves are parts of one document."""
        return tuple(number for number, second in enumerate(self._seconds) if second)

    def counts(self) -> tuple[int, int]:
        """Number of documents in each half."""
        held_out = len(self.held_out())
        return (1, 1) if self._middle is not None else (len(self._seconds) - held_out, held_out)


@dataclass(frozen=True)
class KeptTokens:
    """Tokens of a half under the chosen temperature."""

    features: Array | None  # float32 [tokens, features] of a gate, see `meta_k_features`
    found: Bools  # [tokens], whether a token has neighbors
    lm: Floats  # [tokens], log p_LM
    by_k: Floats  # [tokens, ks], log p_kNN of each k
    stored: Floats  # [tokens], log p_kNN under the stored settings
    documents: Ints  # int64 [tokens], the document of each

    def mixed(self, knn: Floats, lmbda: float) -> Floats:
        """The log p of the mixture, given log p_kNN; that of the model without neighbors."""
        with np.errstate(divide="ignore"):
            both = np.logaddexp(np.log1p(-lmbda) + self.lm, np.log(lmbda) + knn)
        return np.where(self.found, both, self.lm)


class Half:
    """One half: its likelihood under each setting of a grid, and under the stored settings.

    Args:
        grid: The settings to try.
        weighing: The weights of neighbors in the grid.
        stored: The stored settings, as a grid of one.
        stored_weighing: The weights of neighbors under the stored settings.
        keeps: Whether `tokens` is called. A token then takes about 600 bytes.
        fits_gate: Whether a gate's features are among them.
    """

    def __init__(
        self,
        grid: Grid,
        weighing: Weighing,
        stored: Grid,
        stored_weighing: Weighing,
        *,
        keeps: bool,
        fits_gate: bool,
    ) -> None:
        self.grid = GridLikelihood(grid, weighing)
        self.stored = GridLikelihood(stored, stored_weighing)
        self._keeps, self._fits_gate = keeps, fits_gate
        names = ("features", "found", "lm", "knn", "stored", "documents")
        self._columns: dict[str, list[Any]] = {name: [] for name in names}

    @property
    def before(self) -> float:
        """The perplexity under the stored settings."""
        return float(self.stored.perplexities())

    def add(self, scored: TokenScores, neighbors: Neighbors, documents: Ints) -> None:
        """Adds tokens, while the model's scores of them are in memory."""
        columns = self._columns
        for name, likelihood in (("knn", self.grid), ("stored", self.stored)):
            keep = columns[name].append if self._keeps else None
            likelihood.add(neighbors, scored.targets, scored.log_p_lm, keep)
        if not self._keeps:
            return
        for rows, log_p in scored.distributions.parts() if self._fits_gate else ():
            part = neighbors[rows].to(log_p.device)
            features = meta_k_features(part, part.metric, log_p, self.grid.grid.ks)
            columns["features"].append(features.cpu().numpy())
        columns["found"].append(neighbors.mask.any(-1).cpu().numpy())
        columns["lm"].append(scored.log_p_lm.double().numpy())
        columns["documents"].append(documents)

    def tokens(self, temperature: int) -> KeptTokens:
        """All tokens under one temperature of the grid, given by its index."""
        tables = {
            "by_k": [table[:, :, temperature].numpy() for table in self._columns["knn"]],
            "stored": [table[:, 0, 0].numpy() for table in self._columns["stored"]],
        }
        with np.errstate(divide="ignore"):
            logs = {
                name: np.log(np.concatenate(parts).astype(float)) for name, parts in tables.items()
            }
        names = ("features", "found", "lm", "documents")
        arrays = {
            name: np.concatenate(self._columns[name]) if self._columns[name] else None
            for name in names
        }
        return KeptTokens(**logs, **arrays)  # type: ignore[arg-type]


# This word requests no gate, and the removal of a stored one.
NO_GATE = "none"


def check_gate(name: str | None) -> None:
    """Refuses a kind of gate that `tune` cannot fit."""
    if name not in (None, MetaKGate.kind, NO_GATE):
        raise ConfigError(f"the gate must be {MetaKGate.kind} or {NO_GATE}, not {name!r}")


@dataclass(frozen=True)
class GateTuning:
    """A gate, and its results on the half that it was not fitted on."""

    gate: MetaKGate
    lm: float  # perplexity of the model alone
    constant: float  # perplexity of the mixture with the best number as λ
    perplexity: float  # perplexity under the gate
    verdict: Verdict  # the comparison of the gate with the best number

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields but the gate itself, for JSON."""
        return {
            "kind": self.gate.kind,
            "perplexity": self.perplexity,
            "perplexity_constant": self.constant,
            "perplexity_lm": self.lm,
            "verdict": self.verdict.to_dict(),
        }


def fit_gate(
    chosen: KeptTokens,
    held_out: KeptTokens,
    ks: Sequence[int],
    metric: Metric,
    best: Choice,
    *,
    samples: int,
    seed: int,
) -> GateTuning:
    """Fits a gate on one half and judges it on the other."""
    assert chosen.features is not None
    assert held_out.features is not None
    found = chosen.found
    gate = fit_meta_k_gate(
        chosen.features[found], ks, chosen.lm[found], chosen.by_k[found], metric, seed
    )
    constant = held_out.mixed(held_out.by_k[:, best.place[0]], best.lmbda)
    shares = gate.at(torch.from_numpy(held_out.features)).double().numpy()
    sides = np.column_stack([held_out.lm, held_out.by_k])
    gated = np.where(held_out.found, np.logaddexp.reduce(shares + sides, axis=1), held_out.lm)
    lm, number, perplexity = (
        float(np.exp(-np.mean(log_p))) for log_p in (held_out.lm, constant, gated)
    )
    verdict = compared(gated - constant, held_out.documents, samples=samples, seed=seed)
    return GateTuning(gate, lm, number, perplexity, verdict)
