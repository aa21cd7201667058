"""Fits gates on one part of a text and judges them on another, from one pass of `tune`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knn_logits.arrays import Floats, Ints
from knn_logits.errors import ConfigError
from knn_logits.measure.likelihood import Choice
from knn_logits.measure.results import ratio_interval
from knn_logits.measure.text_pass import TokenScores
from knn_logits.measure.tune.confidence import Verdict, compared_by_token
from knn_logits.metrics import Metric
from knn_logits.mixture.gates.fitted import FittedGate, GateTokens, best_lmbda
from knn_logits.mixture.gates.learned import LearnedGate
from knn_logits.mixture.gates.skipping import skip_features
from knn_logits.mixture.gates.stored import GATES, SKIPS, StoredGate
from knn_logits.mixture.weights import Weighing
from knn_logits.progress import Progress, no_progress
from knn_logits.search.neighbors import Neighbors

# The best number as λ, which is no gate unless it skips.
_CONSTANT = "constant"
# This word requests no gate, and the removal of a stored one.
NO_GATE = "none"


@dataclass(frozen=True)
class GateRequest:
    """The gate that a user requests of `tune`, and how many searches it skips."""

    kind: str
    skip: float | None  # share of tokens without a search; None for a gate that always searches
    skip_by: str

    @classmethod
    def of(cls, kind: str | None, skip: float | None, skip_by: str) -> GateRequest | None:
        """The gate that arguments name; None if they name none."""
        kinds = (*GATES, _CONSTANT)
        problem = None
        if kind in (None, NO_GATE):
            if skip is None:
                return None
            problem = f"--skip needs a gate: give --gate {', '.join(kinds[:-1])} or {kinds[-1]}"
        elif kind not in kinds:
            names = ", ".join((*kinds, NO_GATE))
            problem = f"the gate must be one of {names}, not {kind!r}"
        elif skip_by not in SKIPS:
            problem = f"a gate skips by one of {', '.join(SKIPS)}, not {skip_by!r}"
        elif skip is None and kind == _CONSTANT:
            problem = (
                "a constant gate is the number λ, which is tuned anyway: leave --gate out, or add "
                "--skip"
            )
        elif skip is not None and (isinstance(skip, bool) or not 0.0 <= skip < 1.0):
            problem = f"skip must be a share of at least 0 and below 1, not {skip!r}"
        if problem is not None:
            raise ConfigError(problem)
        return cls(str(kind), skip, skip_by)

    @property
    def reads_all(self) -> bool:
        """Whether the gate reads all neighbors, so that it needs the largest k that is tried."""
        return self.gate.reads_all

    @property
    def gate(self) -> type[FittedGate]:
        """The gate whose features are kept."""
        return GATES.get(self.kind, LearnedGate)


class Gathered:
    """Features of tokens, and p_kNN under each k and temperature, as the best are not known yet."""

    def __init__(self, request: GateRequest, seed: int = 0) -> None:
        self.request = request
        self._seed = seed
        self._sample: Any = None
        self.ks: tuple[int, ...] = ()
        self._columns: dict[str, list[Any]] = {
            name: [] for name in ("features", "skip", "found", "lm", "knn", "documents")
        }

    def add(
        self,
        scored: TokenScores,
        neighbors: Neighbors,
        weighing: Weighing,
        documents: Ints,
        ks: tuple[int, ...],
    ) -> None:
        """Adds tokens, while the model's scores of them are in memory."""
        self.ks, metric = ks, neighbors.metric
        if self._sample is None:
            self._sample = self.request.gate.sample(ks, metric, weighing, self._seed)
        for rows, log_p in scored.distributions.parts():
            part = neighbors[rows].to(log_p.device)
            features = self.request.gate.features(part, metric, log_p, ks)
            if self._sample is not None:
                self._sample.add(part, scored.targets[rows], log_p)
            self._columns["features"].append(features.cpu().numpy())
            if self.request.skip is not None:
                self._columns["skip"].append(skip_features(log_p).cpu().numpy())
        self._columns["found"].append(neighbors.mask.any(-1).cpu().numpy())
        self._columns["lm"].append(scored.log_p_lm.double().numpy())
        self._columns["documents"].append(documents)

    def keep(self, p_knn: Tensor) -> None:
        """Adds p_kNN of the same tokens, float32 [rows, ks, temperatures]."""
        self._columns["knn"].append(p_knn.numpy())

    def at(self, best: Choice) -> GateTokens:
        """The tokens, or a rescorer's sample of them, under one k and temperature of the grid."""
        columns, place = self._columns, best.place
        has_neighbor = np.concatenate(columns["found"])
        features = np.concatenate(columns["features"])
        with np.errstate(divide="ignore"):
            by_k = np.log(
                np.concatenate([table[:, :, place[1]] for table in columns["knn"]]).astype(float)
            )
        tokens = GateTokens(
            features=features,
            nearest=np.where(has_neighbor, features[:, 0], np.inf),
            skip=np.concatenate(columns["skip"]) if columns["skip"] else None,
            lm=np.concatenate(columns["lm"]),
            knn=by_k[:, place[0]],
            by_k=by_k,
            documents=np.concatenate(columns["documents"]),
            ks=self.ks,
            temperature=best.temperature,
            lmbda=best.lmbda,
        )
        if self._sample is None:
            return tokens
        rows, neighborhoods = self._sample.taken()
        return replace(tokens[rows], sample=neighborhoods)


@dataclass(frozen=True)
class GateTuning:
    """A gate, and its results on the part of the text that it was not fitted on."""

    gate: StoredGate
    kind: str  # the kind of gate, and how it skips
    lm: float  # perplexity of the model alone
    # Perplexity of the mixture with the best number as λ and a search at every token.
    constant: float
    perplexity: float  # perplexity under the gate
    ratio: float  # the gate's perplexity divided by that of the best number
    # 95% interval of the ratio by a bootstrap over documents; None with fewer than two documents.
    interval: tuple[float, float] | None
    skipped: float  # share of the tokens without a search
    # The comparison of the gate with the best number. Skipping searches costs likelihood, so a
    # gate that skips is compared with the model alone.
    verdict: Verdict
    against: str  # the name of what it is compared with
    tokens: int  # how many tokens these results are of: the whole part, or a sample of it

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields but the gate itself, for JSON."""
        plain = ("kind", "perplexity", "ratio", "skipped", "tokens")
        return {
            **{name: getattr(self, name) for name in plain},
            "perplexity_constant": self.constant,
            "perplexity_lm": self.lm,
            "interval": self.interval and list(self.interval),
            "verdict": self.verdict.to_dict(),
        }


def fit(
    chosen: Gathered,
    other: Gathered,
    metric: Metric,
    best: Choice,
    *,
    samples: int,
    seed: int,
    progress: Progress = no_progress,
) -> GateTuning:
    """Fits a gate on one part and judges it on the other."""
    request, fitted_on, held_out = chosen.request, chosen.at(best), other.at(best)

    def weight(tokens: GateTokens) -> float | FittedGate:
        if request.kind != _CONSTANT:
            return request.gate.fit(tokens, metric, seed, progress)
        finite = np.isfinite(tokens.nearest)
        return best_lmbda(tokens.lm[finite], tokens.knn[finite])

    inner, skips = weight(fitted_on), request.skip is not None
    searched = np.ones(len(held_out.lm), dtype=bool)
    gate: float | StoredGate = inner
    if request.skip is not None:
        gains = _log_p(inner, fitted_on) - fitted_on.lm
        skipping = SKIPS[request.skip_by].fit(fitted_on, gains, request.skip, inner, seed)
        # λ is fitted to the tokens that the gate searches for.
        left = fitted_on[skipping.searched(fitted_on)]
        if np.isfinite(left.nearest).any():
            inner = weight(left)
        gate = type(skipping).from_arrays(inner, skipping.skip_arrays())
        searched = gate.searched(held_out)
    assert not isinstance(gate, float)
    constant = _log_p(best.lmbda, held_out)
    gated = np.where(searched, _log_p(inner, held_out, progress), held_out.lm)
    gains = gated - (held_out.lm if skips else constant)
    return GateTuning(
        gate=gate,
        kind=gate.kind,
        lm=_perplexity(held_out.lm),
        constant=_perplexity(constant),
        perplexity=_perplexity(gated),
        ratio=float(np.exp(np.mean(constant) - np.mean(gated))),
        interval=_interval(constant - gated, held_out.documents, samples, seed),
        skipped=float(1.0 - searched.mean()),
        verdict=compared_by_token(gains, held_out.documents, samples=samples, seed=seed),
        against="the model alone" if skips else "the best number",
        tokens=len(gated),
    )


def _log_p(
    lmbda: float | FittedGate, tokens: GateTokens, progress: Progress = no_progress
) -> Floats:
    """Computes log p of each token under a number λ, or under a gate that always searches."""
    if isinstance(lmbda, FittedGate):
        return lmbda.log_p(tokens, progress)
    return tokens.mixed(torch.full((len(tokens.lm),), lmbda, dtype=torch.float32))


def _perplexity(log_p: Floats) -> float:
    return float(np.exp(-np.mean(log_p)))


def _interval(
    differences: Floats, documents: Ints, samples: int, seed: int
) -> tuple[float, float] | None:
    """Computes the 95% interval of exp(mean difference) by a bootstrap over documents."""
    _, numbers = np.unique(documents, return_inverse=True)
    sums, sizes = np.bincount(numbers, differences), np.bincount(numbers)
    return ratio_interval(np.stack([sums, sizes], axis=-1, dtype=float), samples, seed)
