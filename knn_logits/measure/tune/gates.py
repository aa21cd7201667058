"""Fits gates on one part of a text and judges them on another, from one pass of `tune`.

The k and the temperature of the gate are known only when all tokens have been seen. So a few
features of each token are kept, and its p_kNN under each k and temperature. A rescorer needs the
neighbors themselves, which are kept of a sample of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from knn_logits.arrays import Bools, Floats, Ints
from knn_logits.errors import ConfigError
from knn_logits.measure.likelihood import Choice
from knn_logits.measure.results import ratio_interval
from knn_logits.measure.text_pass import TokenScores
from knn_logits.measure.tune.confidence import Verdict, compared_by_token
from knn_logits.metrics import Metric
from knn_logits.mixture.gates.distance import DistanceGate
from knn_logits.mixture.gates.fitting import (
    best_lmbda,
    fit_confidence_skip,
    fit_distance_gate,
    fit_learned_gate,
    fit_learned_skip,
    fit_meta_k_gate,
)
from knn_logits.mixture.gates.learned import LearnedGate, gate_features
from knn_logits.mixture.gates.meta_k import MetaKGate, meta_k_features
from knn_logits.mixture.gates.rescorer import LARGEST_K, RescorerGate
from knn_logits.mixture.gates.rescorer_fitting import (
    Neighborhoods,
    NeighborhoodSample,
    fit_rescorer,
    rescored,
)
from knn_logits.mixture.gates.skipping import ConfidenceSkip, LearnedSkip, skip_features
from knn_logits.mixture.gates.stored import StoredGate, WeightGate
from knn_logits.mixture.weights import Weighing
from knn_logits.progress import Progress, no_progress
from knn_logits.search.neighbors import Neighbors, powers_up_to

GateKind = Literal["constant", "distance", "learned", "meta-k", "rescorer"]
SkipKind = Literal["learned", "confidence"]
# This word requests no gate, and the removal of a stored one.
NO_GATE = "none"


@dataclass(frozen=True)
class GateRequest:
    """The gate that a user requests of `tune`, and how many searches it skips."""

    kind: GateKind
    skip: float | None  # share of tokens without a search; None for a gate that always searches
    skip_by: SkipKind

    @classmethod
    def of(cls, kind: str | None, skip: float | None, skip_by: str) -> GateRequest | None:
        """Returns the gate that arguments name; None if they name none."""
        kinds, ways = get_args(GateKind), get_args(SkipKind)
        problem = None
        if kind in (None, NO_GATE):
            if skip is None:
                return None
            problem = (
                "--skip needs a gate: give --gate learned, meta-k, rescorer, distance or constant"
            )
        elif kind not in kinds:
            names = ", ".join((*kinds, NO_GATE))
            problem = f"the gate must be one of {names}, not {kind!r}"
        elif skip_by not in ways:
            problem = f"a gate skips by one of {', '.join(ways)}, not {skip_by!r}"
        elif skip is None and kind == "constant":
            problem = (
                "a constant gate is the number λ, which is tuned anyway: leave --gate out, or add "
                "--skip"
            )
        elif skip is not None and (isinstance(skip, bool) or not 0.0 <= skip < 1.0):
            problem = f"skip must be a share of at least 0 and below 1, not {skip!r}"
        if problem is not None:
            raise ConfigError(problem)
        return cls(kind, skip, skip_by)  # type: ignore[arg-type]

    @property
    def reads_all(self) -> bool:
        """Whether the gate reads all neighbors, so that it needs the largest k that is tried."""
        return self.kind in ("meta-k", "rescorer")


class Gathered:
    """The features and probabilities that are kept of the tokens of one part of a text."""

    def __init__(self, request: GateRequest, seed: int = 0) -> None:
        self.request = request
        self._seed = seed
        self._sample: NeighborhoodSample | None = None
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
        if self.request.kind == "rescorer" and self._sample is None:
            self._sample = NeighborhoodSample(min(ks[-1], LARGEST_K), metric, weighing, self._seed)
        for rows, log_p in scored.distributions.parts():
            part = neighbors[rows].to(log_p.device)
            if self.request.kind == "meta-k":
                features = meta_k_features(part, metric, log_p, ks)
            elif self._sample is not None:
                features = meta_k_features(part, metric, log_p, powers_up_to(self._sample.k))
                self._sample.add(part, scored.targets[rows], log_p)
            else:
                features = gate_features(part, metric, log_p)
            self._columns["features"].append(features.cpu().numpy())
            if self.request.skip is not None:
                self._columns["skip"].append(skip_features(log_p).cpu().numpy())
        self._columns["found"].append(neighbors.mask.any(-1).cpu().numpy())
        self._columns["lm"].append(scored.log_p_lm.double().numpy())
        self._columns["documents"].append(documents)

    def keep(self, p_knn: Tensor) -> None:
        """Adds p_kNN of the same tokens, float32 [rows, ks, temperatures]."""
        self._columns["knn"].append(p_knn.numpy())

    def at(self, best: Choice) -> _Tokens:
        """The tokens, or a rescorer's sample of them, under one k and temperature of the grid."""
        columns, place = self._columns, best.place
        has_neighbor = np.concatenate(columns["found"])
        features = np.concatenate(columns["features"])
        with np.errstate(divide="ignore"):
            by_k = np.log(
                np.concatenate([table[:, :, place[1]] for table in columns["knn"]]).astype(float)
            )
        tokens = _Tokens(
            features=features,
            nearest=np.where(has_neighbor, features[:, 0], np.inf),
            skip=np.concatenate(columns["skip"]) if columns["skip"] else None,
            lm=np.concatenate(columns["lm"]),
            knn=by_k[:, place[0]],
            by_k=by_k,
            documents=np.concatenate(columns["documents"]),
            temperature=best.temperature,
        )
        if self._sample is None:
            return tokens
        rows, neighborhoods = self._sample.taken()
        return replace(tokens[rows], neighborhoods=neighborhoods)


@dataclass(frozen=True)
class _Tokens:
    features: npt.NDArray[np.float32]
    nearest: Floats
    skip: npt.NDArray[np.float32] | None
    lm: Floats
    knn: Floats
    by_k: Floats
    documents: Ints
    temperature: float
    neighborhoods: Neighborhoods | None = None

    def __getitem__(self, rows: Bools | Ints) -> _Tokens:
        whole = {name: value for name, value in vars(self).items() if name != "temperature"}
        chosen = {name: value[rows] for name, value in whole.items() if value is not None}
        return replace(self, **chosen)

    def mixed(self, lmbda: float | WeightGate, progress: Progress = no_progress) -> Floats:
        """Computes log p of each token under a number λ, or under a gate that always searches."""
        if isinstance(lmbda, RescorerGate):
            assert self.neighborhoods is not None
            return rescored(
                lmbda, self.neighborhoods, self.features, self.lm, self.temperature, progress
            )
        if isinstance(lmbda, MetaKGate):
            shares = lmbda.at(torch.from_numpy(self.features)).double().numpy()
            sides = np.column_stack([self.lm, self.by_k])
            log_p = np.logaddexp.reduce(shares + sides, axis=1)
            return np.where(np.isfinite(self.nearest), log_p, self.lm)
        if isinstance(lmbda, DistanceGate):
            share = lmbda.at(torch.from_numpy(self.nearest).float().clamp(-3e38, 3e38))
        elif isinstance(lmbda, LearnedGate):
            share = lmbda.at(torch.from_numpy(self.features))
        else:
            share = torch.full((len(self.lm),), lmbda, dtype=torch.float32)
        weight = np.where(np.isfinite(self.nearest), share.double().numpy(), 0.0)
        with np.errstate(divide="ignore"):
            mixed: Floats = np.logaddexp(np.log1p(-weight) + self.lm, np.log(weight) + self.knn)
        return mixed

    def searched(self, gate: object) -> Bools:
        """Tells which tokens a gate searches for, bool [tokens]."""
        if isinstance(gate, LearnedSkip):
            return (gate.expected(torch.from_numpy(self.skip)) > gate.threshold).numpy()
        if isinstance(gate, ConfidenceSkip):
            assert self.skip is not None
            least = np.log(gate.limit) if gate.limit > 0.0 else -np.inf
            return np.asarray(self.skip[:, 0] <= least)
        return np.ones(len(self.lm), dtype=bool)


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
    fitted_on, held_out = chosen.at(best), other.at(best)

    def weight(tokens: _Tokens) -> float | WeightGate:
        return _weight(chosen.request.kind, tokens, metric, best, seed, chosen.ks, progress)

    inner = weight(fitted_on)
    gate: float | StoredGate = inner
    if chosen.request.skip is not None:
        skipping = _skipping(chosen.request, fitted_on, inner, seed)
        # λ is fitted to the tokens that the gate searches for.
        left = fitted_on[fitted_on.searched(skipping)]
        if np.isfinite(left.nearest).any():
            inner = weight(left)
        gate = type(skipping).from_arrays(inner, skipping.skip_arrays())
    assert not isinstance(gate, float)
    constant = held_out.mixed(best.lmbda)
    searched = held_out.searched(gate)
    gated = np.where(searched, held_out.mixed(inner, progress), held_out.lm)
    skips = chosen.request.skip is not None
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


def _weight(
    kind: GateKind,
    tokens: _Tokens,
    metric: Metric,
    best: Choice,
    seed: int,
    ks: tuple[int, ...],
    progress: Progress,
) -> float | WeightGate:
    if kind == "constant":
        finite = np.isfinite(tokens.nearest)
        return best_lmbda(tokens.lm[finite], tokens.knn[finite])
    if kind == "distance":
        return fit_distance_gate(tokens.nearest, tokens.lm, tokens.knn, metric)
    if kind == "rescorer":
        assert tokens.neighborhoods is not None
        return fit_rescorer(
            tokens.neighborhoods,
            tokens.features,
            tokens.lm,
            metric,
            temperature=best.temperature,
            lmbda=best.lmbda,
            seed=seed,
            progress=progress,
        )
    features = tokens.features.copy()
    # The distance is not finite for a token without neighbors, which is then left out.
    features[:, 0] = tokens.nearest
    if kind == "meta-k":
        return fit_meta_k_gate(features, ks, tokens.lm, tokens.by_k, metric, seed=seed)
    return fit_learned_gate(features, tokens.lm, tokens.knn, metric, seed=seed)


def _skipping(
    request: GateRequest, tokens: _Tokens, inner: float | WeightGate, seed: int
) -> ConfidenceSkip | LearnedSkip:
    assert request.skip is not None
    assert tokens.skip is not None
    if request.skip_by == "confidence":
        return fit_confidence_skip(tokens.skip[:, 0], request.skip, inner)
    gains = tokens.mixed(inner) - tokens.lm
    return fit_learned_skip(tokens.skip, gains, request.skip, inner, seed=seed)


def _perplexity(log_p: Floats) -> float:
    return float(np.exp(-np.mean(log_p)))


def _interval(
    differences: Floats, documents: Ints, samples: int, seed: int
) -> tuple[float, float] | None:
    """Computes the 95% interval of exp(mean difference) by a bootstrap over documents."""
    _, numbers = np.unique(documents, return_inverse=True)
    sums, sizes = np.bincount(numbers, differences), np.bincount(numbers)
    return ratio_interval(np.stack([sums, sizes], axis=-1, dtype=float), samples, seed)
