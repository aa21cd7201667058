"""Computes BLEU and chrF with sacrebleu, and their intervals. It knows texts, but no models."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knn_logits.errors import MissingDependencyError

NAMES = {"BLEU": "bleu", "chrF2": "chrf"}


@dataclass(frozen=True)
class Score:
    """A score of a corpus, from 0 to 100."""

    score: float
    # 95% interval by bootstrap over the sentences; None for fewer than two.
    interval: tuple[float, float] | None
    signature: str  # sacrebleu's signature, which says how the score was computed


def sacrebleu() -> Any:
    """Loads the library sacrebleu."""
    try:
        return importlib.import_module("sacrebleu")
    except ImportError as error:
        raise MissingDependencyError(
            'BLEU and chrF need sacrebleu: pip install "knn-logits[mt]"'
        ) from error


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Computes corpus BLEU with sacrebleu's default settings."""
    return float(sacrebleu().corpus_bleu(list(texts), [list(references)]).score)


def scores(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], samples: int = 1000
) -> tuple[dict[str, dict[str, Score]], dict[str, float] | None]:
    """Computes BLEU and chrF of one or two systems."""
    library = sacrebleu()
    by_system: dict[str, dict[str, Score]] = {name: {} for name in systems}
    targets = [list(references)]
    if samples < 2 or len(references) < 2:
        for metric in (library.metrics.BLEU(), library.metrics.CHRF()):
            for name, texts in systems.items():
                result = metric.corpus_score(list(texts), targets)
                signature = f"{result.name}|{metric.get_signature()}"
                by_system[name][NAMES[result.name]] = Score(float(result.score), None, signature)
        return by_system, None
    # sacrebleu's paired test also gives the intervals, even for one system.
    significance = importlib.import_module("sacrebleu.significance")
    test = significance.PairedTest(
        [(name, list(texts)) for name, texts in systems.items()],
        {
            "BLEU": library.metrics.BLEU(references=targets),
            "chrF2": library.metrics.CHRF(references=targets),
        },
        references=None,
        test_type="bs",
        n_samples=samples,
    )
    signatures, results = test()
    for title, short in NAMES.items():
        for name, result in zip(systems, results[title], strict=True):
            interval = (float(result.mean - result.ci), float(result.mean + result.ci))
            signature = f"{title}|{signatures[title]}"
            by_system[name][short] = Score(float(result.score), interval, signature)
    if len(systems) < 2:
        return by_system, None
    first, second = (list(texts) for texts in systems.values())
    # The test would call two equal scores a significant difference.
    p_values = {
        short: 1.0 if first == second else float(results[title][1].p_value)
        for title, short in NAMES.items()
    }
    return by_system, p_values
