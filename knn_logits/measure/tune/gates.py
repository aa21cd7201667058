"""Fits a gate on one half of a text and judges it on the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from knn_logits.errors import ConfigError
from knn_logits.measure.confidence import Verdict, compared
from knn_logits.measure.likelihood import Choice
from knn_logits.measure.tune.halves import KeptTokens
from knn_logits.metrics import Metric
from knn_logits.mixture.gates.meta_k import MetaKGate, fit_meta_k_gate

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


def fit(
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
