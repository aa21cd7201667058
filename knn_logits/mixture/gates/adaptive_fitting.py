"""Fits an `AdaptiveGate` to tokens, and judges one."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from knn_logits.metrics import Metric
from knn_logits.mixture.gates.adaptive import AdaptiveGate, Ballots, shares_of
from knn_logits.mixture.gates.network import trained
from knn_logits.mixture.vote import log_p_knn_of
from knn_logits.search.neighbors import Neighbors

# The weight of the likelihood of passages that a text repeats, and of the model's own text, where
# documents of the corpus, each left out of the search, count as 1.
_PASSAGE_WEIGHT, _OWN_WEIGHT = 0.1, 4.0
# The weight of the log-odds against the model's own choice in its own text, beyond a margin.
_PENALTY, _MARGIN = 0.5, 0.1
_UNITS, _STEPS, _DECAY = 16, 800, 1e-2
_LEAST_P = 1e-9

# The kinds of text that a gate is fitted to.
CORPUS, PASSAGE, OWN_TEXT = 0, 1, 2


@dataclass(frozen=True)
class GateTokens:
    """Tokens of texts to fit or judge an `AdaptiveGate` on."""

    features: Tensor  # float32 [tokens, features]
    tokens: Tensor  # int64 [tokens, 3], see `Ballots.tokens`
    p: Tensor  # float32 [tokens, 3, 3], see `Ballots.p`
    found: Tensor  # bool [tokens, 2], see `Ballots.found`
    target: Tensor  # int64 [tokens], the token that follows
    p_target: Tensor  # float32 [tokens, 3], its probability by model, neighbors and match
    kind: Tensor  # int64 [tokens], CORPUS, PASSAGE or OWN_TEXT
    text: Tensor  # int64 [tokens], the number of the text

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, rows: Tensor) -> GateTokens:
        return GateTokens(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def joined(cls, parts: list[GateTokens]) -> GateTokens:
        """Joins the tokens of several texts."""
        names = [field.name for field in fields(cls)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    @classmethod
    def of(
        cls,
        neighbors: Neighbors,
        log_weights: Tensor,
        log_p_lm: Tensor,
        target: Tensor,
        kind: int,
        text: Tensor,
    ) -> GateTokens:
        """Reads what was found for some tokens; `log_p_lm` is [tokens, vocabulary]."""
        ballots = Ballots.of(neighbors, log_weights, log_p_lm)
        target = target.to(log_p_lm.device)
        match = neighbors.occurrences[0]
        log_p = [
            log_p_lm.gather(-1, target[:, None])[:, 0],
            log_p_knn_of(log_weights, neighbors.values, target),
            log_p_knn_of(match.log_weights, match.values, target),
        ]
        return cls(
            features=ballots.features.cpu(),
            tokens=ballots.tokens.cpu(),
            p=ballots.p.cpu(),
            found=ballots.found.cpu(),
            target=target.cpu(),
            p_target=torch.stack(log_p, dim=-1).exp().cpu(),
            kind=torch.full((len(target),), kind),
            text=text,
        )


def _mixed(shares: Tensor, p: Tensor) -> Tensor:
    """The mixture of p, [..., 3], under λ and s, [..., 2]."""
    lmbda, share = shares.unbind(-1)
    lm, knn, match = p.unbind(-1)
    return share * match + (1.0 - share) * (lmbda * knn + (1.0 - lmbda) * lm)


def fit_adaptive_gate(tokens: GateTokens, metric: Metric, *, seed: int = 0) -> AdaptiveGate:
    """Fits an `AdaptiveGate`.

    It maximizes the likelihood of all tokens. For the model's own text it also penalizes a mixture
    that chooses another token than the model.

    Args:
        tokens: The tokens, some of each kind.
        metric: The metric of the distances.
        seed: The seed of the first weights and of the batches.
    """
    weights = torch.zeros(len(tokens), dtype=torch.float32)
    for kind, weight in ((CORPUS, 1.0), (PASSAGE, _PASSAGE_WEIGHT), (OWN_TEXT, _OWN_WEIGHT)):
        rows = tokens.kind == kind
        weights[rows] = weight * len(tokens) / max(1, int(rows.sum()))
    others = tokens.tokens != tokens.tokens[:, :1]

    def loss(logits: Tensor, batch: Tensor) -> Tensor:
        rows = tokens[batch]
        shares = shares_of(logits) * rows.found
        likelihood = _mixed(shares, rows.p_target).clamp(min=_LEAST_P).log()
        favorites = _mixed(shares[:, None], rows.p).clamp(min=_LEAST_P).log()
        lost = favorites - favorites[:, :1] + _MARGIN
        lost = lost.masked_fill(~others[batch], 0.0).clamp(min=0.0).amax(-1)
        penalty = _PENALTY * lost * (rows.kind == OWN_TEXT)
        return (weights[batch] * (penalty - likelihood)).mean()

    arrays = trained(
        np.asarray(tokens.features),
        loss,
        units=_UNITS,
        steps=_STEPS,
        decay=_DECAY,
        seed=seed,
        outputs=2,
    )
    return AdaptiveGate(metric, arrays)


@dataclass(frozen=True)
class GateQuality:
    """How a gate does on tokens that it was not fitted to."""

    gain: float  # nats per token of the corpus's own documents, each left out of the datastore
    kept: float  # share of tokens of the model's own text whose choice stays the model's
    followed: float  # share of tokens of the corpus's passages that the mixture chooses


def quality(gate: AdaptiveGate, tokens: GateTokens) -> GateQuality:
    """Judges a gate by tokens of all kinds."""
    shares = gate.at(tokens.features) * tokens.found
    gain = _mixed(shares, tokens.p_target).clamp(min=_LEAST_P).log()
    gain = gain - tokens.p_target[:, 0].clamp(min=_LEAST_P).log()
    best = _mixed(shares[:, None], tokens.p).argmax(-1, keepdim=True)
    chosen = tokens.tokens.gather(-1, best)[:, 0]

    def mean(values: Tensor, kind: int) -> float:
        return round(float(values[tokens.kind == kind].double().mean().nan_to_num(0.0)), 4)

    return GateQuality(
        mean(gain, CORPUS),
        mean(chosen == tokens.tokens[:, 0], OWN_TEXT),
        mean(chosen == tokens.target, PASSAGE),
    )
