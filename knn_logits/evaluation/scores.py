"""BLEU and chrF by sacrebleu, with intervals. Texts only, no models."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knn_logits.errors import MissingDependencyError

NAMES = {"BLEU": "bleu", "chrF2": "chrf"}


@dataclass(frozen=True)
class Score:
    """A score of a corpus, from 0 to 100.

    Attributes:
        score: The score.
        interval: 95% interval by bootstrap over the sentences; None for fewer than two.
        signature: sacrebleu's, which says how it was computed.
    """

    score: float
    interval: tuple[float, float] | None
    signature: str


def sacrebleu() -> Any:
    """The library, loaded when it is needed.

    Raises:
        MissingDependencyError: when it is not installed.
    """
    try:
        return importlib.import_module("sacrebleu")
    except ImportError as error:
        raise MissingDependencyError(
            'BLEU and chrF need sacrebleu: pip install "knn-logits[mt]"'
        ) from error


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU, sacrebleu's default.

    Raises:
        MissingDependencyError: when sacrebleu is not installed.
    """
    return float(sacrebleu().corpus_bleu(list(texts), [list(references)]).score)


def scores(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], samples: int = 1000
) -> tuple[dict[str, dict[str, Score]], dict[str, float] | None]:
    """BLEU and chrF of one or two systems.

    Args:
        systems: What each wrote; the first is what the second is compared with.
        references: What it should have written.
        samples: Resamples of the bootstrap; fewer than two leave intervals out.

    Returns:
        By system and name the scores, and by name the p value of the second system.

    Raises:
        MissingDependencyError: when sacrebleu is not installed.
    """
    library = sacrebleu()
    metrics = {"BLEU": library.metrics.BLEU(), "chrF2": library.metrics.CHRF()}
    targets = [list(references)]
    resampled = samples > 1 and len(references) > 1
    found: dict[str, dict[str, Score]] = {name: {} for name in systems}
    for title, metric in metrics.items():
        for name, texts in systems.items():
            if resampled:
                result = metric.corpus_score(list(texts), targets, n_bootstrap=samples)
                middle, half = float(result._mean), float(result._ci)
                interval = (middle - half, middle + half)
            else:
                result, interval = metric.corpus_score(list(texts), targets), None
            found[name][NAMES[title]] = Score(
                float(result.score), interval, f"{title}|{metric.get_signature()}"
            )
    if len(systems) < 2 or not resampled:
        return found, None
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
    _, results = test()
    p_values = {NAMES[title]: float(results[title][1].p_value) for title in NAMES}
    return found, p_values
