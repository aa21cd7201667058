"""Translates with the few likeliest settings, and finds the setting with the highest BLEU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from knn_logits.corpus.documents import Document
from knn_logits.errors import CorpusError
from knn_logits.measure.bench import Bench
from knn_logits.measure.likelihood import Choice, GridLikelihood
from knn_logits.measure.translation import bleu, reading_of, translate
from knn_logits.progress import Progress
from knn_logits.store.records import SettingsRecord


@dataclass(frozen=True)
class Trial:
    """A setting that was decoded."""

    k: int  # neighbors of each query
    lmbda: float  # weight of the neighbors
    temperature: float  # temperature of the softmax over the neighbors
    perplexity: float  # perplexity of the pairs that it was tried on
    bleu: float  # BLEU of their translations


@dataclass(frozen=True)
class BleuTuning:
    """The BLEU of the settings that were decoded."""

    num_beams: int  # number of beams; 1 is greedy search
    trials: tuple[Trial, ...]  # the settings that were tried, the likeliest first
    # BLEU of the held-out pairs: of the model alone ("lm"), under the datastore's settings
    # ("before"), and under the choice ("chosen").
    held_out: dict[str, float]
    pairs: int  # number of pairs that were decoded for each trial
    held_out_pairs: int  # number of held-out pairs

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, for JSON."""
        return asdict(self)


def likeliest(part: GridLikelihood, number: int) -> list[Choice]:
    """The likeliest settings, the best first, with one λ for each k and temperature."""
    perplexities = part.perplexities().nan_to_num(nan=np.inf)
    least, lmbdas = perplexities.min(dim=2)
    order = np.argsort(least.numpy(), axis=None, kind="stable")[:number]
    return [
        part.grid.choice((k, temperature, int(lmbdas[k, temperature])), perplexities)
        for k, temperature in np.stack(np.unravel_index(order, least.shape), axis=-1).tolist()
    ]


def choose_by_bleu(
    bench: Bench,
    stored: SettingsRecord,
    part: GridLikelihood,
    pairs: Sequence[Document],
    held_out: Sequence[Document],
    number: int,
    *,
    num_beams: int,
    progress: Progress,
) -> tuple[Choice, BleuTuning]:
    """Decodes the likeliest settings and takes the one with the highest BLEU."""
    memory = bench.memory
    assert memory is not None
    if not pairs or not held_out:
        raise CorpusError(
            "there are too few pairs to tune on one part and evaluate on the rest: add more pairs"
        )

    alone = reading_of(memory.stores[0])

    def decoded(of: Sequence[Document], name: str, choice: Choice | SettingsRecord | None) -> float:
        settings: dict[str, Any] = {}
        if choice is not None:
            # A place of the grid has the memory's suffix weight.
            settings = memory.config.stored_values()
            settings |= {name: getattr(choice, name, settings[name]) for name in settings}
        texts = translate(
            bench.model,
            bench.tokenizer,
            [str(row.source) for row in of],
            memory if choice is not None else None,
            num_beams=num_beams,
            progress=progress,
            phase=name,
            **settings,
            **alone,
        )
        return bleu(texts, [row.text for row in of])

    choices = likeliest(part, number)
    scores = [
        decoded(pairs, f"setting {place + 1} of {len(choices)}", choice)
        for place, choice in enumerate(choices)
    ]
    best = choices[int(np.argmax(scores))]
    trials = tuple(
        Trial(choice.k, choice.lmbda, choice.temperature, choice.perplexity, score)
        for choice, score in zip(choices, scores, strict=True)
    )
    reported = {
        "lm": decoded(held_out, "held out, model", None),
        "before": decoded(held_out, "held out, before", stored),
        "chosen": decoded(held_out, "held out, chosen", best),
    }
    return best, BleuTuning(num_beams, trials, reported, len(pairs), len(held_out))
