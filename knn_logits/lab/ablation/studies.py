"""The studies by name, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable

from knn_logits.lab.ablation.approximation import study_approximation
from knn_logits.lab.ablation.bench import Studied
from knn_logits.lab.ablation.corpus_size import study_size
from knn_logits.lab.ablation.finding import Finding
from knn_logits.lab.ablation.helped import (
    study_frequency,
    study_oracle,
    study_part,
    study_position,
    study_tokens,
)
from knn_logits.lab.ablation.keys import study_metric, study_place, study_precision
from knn_logits.lab.ablation.sweeps import study_k, study_lmbda, study_temperature

STUDIES: dict[str, Callable[[Studied], Finding]] = {
    "size": study_size,
    "k": study_k,
    "lmbda": study_lmbda,
    "temperature": study_temperature,
    "key": study_place,
    "metric": study_metric,
    "precision": study_precision,
    "approximation": study_approximation,
    "oracle": study_oracle,
    "frequency": study_frequency,
    "position": study_position,
    "part": study_part,
    "tokens": study_tokens,
}
