"""Fits a gate on one part of a text and judges it on another, from one pass of `tune`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Array, Bools, Floats, Ints
from knn_logits.errors import ConfigError
from knn_logits.measure.likelihood import Choice
from knn_logits.measure.text_pass import TokenScores
from knn_logits.measure.tune.confidence import Verdict, compared_by_token
from knn_logits.metrics import Metric
from knn_logits.mixture.gates.meta_k import MetaKGate, fit_meta_k_gate, meta_k_features
from knn_logits.search.neighbors import Neighbors

# This word requests no gate, and the removal of a stored one.
NO_GATE = "none"


def check_gate(name: str | None) -> None:
    """Refuses a kind of gate that `tune` cannot fit."""
    if name not in (None, MetaKGate.kind, NO_GATE):
        raise ConfigError(f"the gate must be {MetaKGate.kind} or {NO_GATE}, not {name!r}")


@dataclass(frozen=True)
class GateTokens:
    """Tokens of a text to fit or judge a gate on."""

    features: Array  # float32 [tokens, features], see `meta_k_features`
    found: Bools  # [tokens], whether a token has neighbors
    lm: Floats  # [tokens], log p_LM
    by_k: Floats  # [tokens, ks], log p_kNN of each k at the best temperature
    documents: Ints  # int64 [tokens], the document of each


class Gathered:
    """Features of tokens, and p_kNN under each k and temperature, as the best are not known yet."""

    def __init__(self, ks: tuple[int, ...]) -> None:
        self.ks = ks
        self._columns: dict[str, list[Any]] = {
            name: [] for name in ("features", "found", "lm", "knn", "documents")
        }

    def add(self, scored: TokenScores, neighbors: Neighbors, documents: Ints) -> None:
        """Adds tokens, while the model's scores of them are in memory."""
        for rows, log_p in scored.distributions.parts():
            part = neighbors[rows].to(log_p.device)
            features = meta_k_features(part, part.metric, log_p, self.ks)
            self._columns["features"].append(features.cpu().numpy())
        self._columns["found"].append(neighbors.mask.any(-1).cpu().numpy())
        self._columns["lm"].append(scored.log_p_lm.double().numpy())
        self._columns["documents"].append(documents)

    def keep(self, p_knn: Tensor) -> None:
        """Adds p_kNN of the same tokens, float32 [rows, ks, temperatures]."""
        self._columns["knn"].append(p_knn.numpy())

    def at(self, temperature: int) -> GateTokens:
        """The tokens under one temperature of the grid, given by its index."""
        columns = dict(self._columns)
        tables = [table[:, :, temperature] for table in columns.pop("knn")]
        with np.errstate(divide="ignore"):
            by_k = np.log(np.concatenate(tables).astype(float))
        arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
        return GateTokens(by_k=by_k, **arrays)


@dataclass(frozen=True)
class GateTuning:
    """A gate, and its results on the part of the text that it was not fitted on."""

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


def fit(
    chosen: Gathered, other: Gathered, metric: Metric, best: Choice, *, samples: int, seed: int
) -> GateTuning:
    """Fits a gate on one part and judges it on the other."""
    place_k, temperature, _ = best.place
    part, held_out = chosen.at(temperature), other.at(temperature)
    found = part.found
    gate = fit_meta_k_gate(
        part.features[found], chosen.ks, part.lm[found], part.by_k[found], metric, seed
    )
    lmbdas = np.where(held_out.found, best.lmbda, 0.0)
    with np.errstate(divide="ignore"):
        constant = np.logaddexp(
            np.log1p(-lmbdas) + held_out.lm, np.log(lmbdas) + held_out.by_k[:, place_k]
        )
    shares = gate.at(torch.from_numpy(held_out.features)).double().numpy()
    sides = np.column_stack([held_out.lm, held_out.by_k])
    gated = np.where(held_out.found, np.logaddexp.reduce(shares + sides, axis=1), held_out.lm)
    return GateTuning(
        gate=gate,
        lm=_perplexity(held_out.lm),
        constant=_perplexity(constant),
        perplexity=_perplexity(gated),
        verdict=compared_by_token(gated - constant, held_out.documents, samples=samples, seed=seed),
    )


def _perplexity(log_p: Floats) -> float:
    return float(np.exp(-np.mean(log_p)))
