"""Chooses when a memory is trusted while text is written.

Text that the model writes shows how rare words can be that a passage shares with it by chance. Text
of the corpus, with each part left out in turn, shows how often such a passage is right (LOG.md).
"""

from __future__ import annotations

import logging
import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from knn_logits.arrays import Array
from knn_logits.building.calibration import entry_of_places, part_of_entries
from knn_logits.building.sample_texts import sample_texts, writing_seconds
from knn_logits.engine.compatibility import vocabulary_size
from knn_logits.engine.pieces import InnerText
from knn_logits.engine.tokens import special_ids
from knn_logits.index.speed import fastest
from knn_logits.measure.text_pass import TokenScores
from knn_logits.search.occurrences import Prefixes
from knn_logits.search.rarity import BEGINS, COUNTS, ENDS, rarity_of_end, token_rarities
from knn_logits.search.suffix_index import SuffixIndex
from knn_logits.store.datastore import Datastore
from knn_logits.store.records import TrustRecord, WritingRecord

logger = logging.getLogger(__name__)

# A model writes nothing worth protecting if less than this share of its last few tokens are new.
_NEW = 0.8
# Of so many of the model's own tokens, one may meet a passage that says another.
_DISTURBED = 1 / 2000
_TAIL = 0.1
# Steps of the model's own text, below which its tail says little.
_FEWEST = 200
# No limit is below this multiple of the logarithm of the number of entries, since among more
# entries rarer words are shared by chance.
_BY_CHANCE = 2.6
# λ at the limit, and how it grows, where the corpus says nothing else; and what that counts for.
_OFFSET, _SLOPE, _PRIOR = -3.25, 1.8, 2.0
_OFFSETS, _SLOPES = np.linspace(-6.0, 0.0, 25), np.linspace(0.2, 4.0, 20)
# The most parts of the corpus that are left out in turn.
_PARTS = 16
# Marking the words of a vocabulary is timed on so many tokens.
_MARKED = 256


@dataclass(frozen=True)
class _Steps:
    """What follows the longest ends of texts at some steps."""

    rarity: Array  # float [steps], how rare the longest end is; 0 for none
    leading: Array  # int64 [steps], the token that follows it most often; -1 for none
    share: Array  # float [steps], how often the step's own token follows it


class Sample:
    """Tokens of the corpus with the model's probabilities, as a calibration scores them."""

    def __init__(self) -> None:
        self._scored: list[tuple[Prefixes, Array, Array, Array]] = []

    def add(self, scored: TokenScores) -> None:
        """Keeps what is needed of some tokens."""
        parts = (scored.targets.cpu().numpy(), scored.log_p_lm.numpy(), scored.places)
        self._scored.append((scored.prefixes, *parts))

    def by_part(self, store: Datastore) -> Iterator[tuple[Array, Prefixes, Array, Array]]:
        """Yields the entries of a part of the corpus, and its tokens in the sample."""
        part_of = part_of_entries(store)
        parts_of = [part_of[entry_of_places(store, places)] for *_, places in self._scored]
        for part in np.unique(np.concatenate([*parts_of, np.empty(0, np.int32)]))[:_PARTS].tolist():
            hidden = np.flatnonzero(part_of == part)
            for (texts, targets, log_p_lm, _), parts in zip(self._scored, parts_of, strict=True):
                rows = np.flatnonzero(parts == part)
                if len(rows):
                    yield hidden, texts[rows], targets[rows], log_p_lm[rows]


def with_trust(
    writing: WritingRecord | None,
    model: nn.Module,
    tokenizer: Any,
    store: Datastore,
    sample: Sample,
    words: Array,
) -> WritingRecord | None:
    """Adds when the memory is trusted; not for a model that is unsure of its text or repeats it."""
    texts = sample_texts(model, tokenizer) if writing is not None and len(store) else None
    if writing is None or texts is None:
        return writing
    index = SuffixIndex(store, make=True)
    rarity = token_rarities([np.bincount(np.asarray(store.tokens))])
    targets, prefixes = np.concatenate(texts), _prefixes(texts)
    steps = _steps(store, index, (rarity, words), prefixes, targets)
    met = np.where(steps.leading == targets, 0.0, steps.rarity)
    new = _different(prefixes)
    if len(new) < _NEW * len(met):
        return writing
    limit = limit_of(met[new], len(store))
    rare, p_knn, log_p_lm = [np.empty(0)], [np.empty(0)], [np.empty(0)]
    for hidden, prefixes, targets, scores in sample.by_part(store):
        rest = SuffixIndex(store, hidden, make=True)
        steps = _steps(store, rest, (rarity, words), prefixes, targets)
        enough = steps.rarity >= limit
        rare.append(steps.rarity[enough] / limit)
        p_knn.append(steps.share[enough])
        log_p_lm.append(scores[enough])
    offset, slope = curve_of(
        np.concatenate(rare), np.concatenate(p_knn), np.exp(np.concatenate(log_p_lm))
    )
    logger.debug("trusted from %.4g nats: offset %g, slope %g", limit, offset, slope)
    trust = TrustRecord(limit=limit, offset=offset, slope=slope)
    # Where the memory is silent the text is the model's own, also where that repeats itself.
    return writing.model_copy(update={"trust": trust, "no_repeat_ngram_size": None})


def trust_seconds(model: nn.Module, tokenizer: Any, token_seconds: float) -> float:
    """Seconds that the choice takes on an idle machine, most of them for the model's texts."""
    marking = fastest(lambda: word_marks(tokenizer, _MARKED)) / _MARKED * vocabulary_size(model)
    return marking + writing_seconds(model, tokenizer, token_seconds)


def word_marks(tokenizer: Any, vocabulary: int) -> Array:
    """What each token is in a text: `BEGINS`, `ENDS` and `COUNTS`, uint8 [vocabulary]."""
    # A token of a script without spaces is a word, and so is a part of a character.
    marks = np.full(vocabulary, BEGINS | ENDS | COUNTS, np.uint8)
    special, size = special_ids(tokenizer), min(vocabulary, len(tokenizer))
    text_after = InnerText(tokenizer, range(size))
    for token in range(size):
        text = text_after([token])
        cut = "\ufffd" in text
        if token in special or not text:
            marks[token] = BEGINS | ENDS
        elif not cut and unicodedata.category(text[0]) != "Lo":
            counts = any(map(str.isalnum, text))
            marks[token] = BEGINS * text[0].isspace() | ENDS * text[-1].isspace() | COUNTS * counts
    return marks


def _prefixes(texts: Sequence[Array]) -> Prefixes:
    """The text before each token of some texts."""
    lengths = np.array([len(text) for text in texts])
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Prefixes(np.concatenate(texts), first, np.arange(lengths.sum()))


def _different(texts: Prefixes, size: int = 8) -> Array:
    """Numbers of the rows whose last tokens no earlier row has, since a loop counts once."""
    rows: dict[bytes, int] = {}
    for row, (first, end) in enumerate(zip(texts.first, texts.end, strict=True)):
        rows.setdefault(texts.tokens[max(first, end - size) : end].tobytes(), row)
    return np.array(sorted(rows.values()), np.int64)


def _steps(
    store: Datastore,
    index: SuffixIndex,
    rarity: tuple[Array, Array],
    texts: Prefixes,
    targets: Array,
) -> _Steps:
    low, high, lengths = index.ranges(texts)
    steps = _Steps(np.zeros(len(texts)), np.full(len(texts), -1), np.zeros(len(texts)))
    values = store.values.numpy()
    for row, (first, last, length) in enumerate(zip(low, high, lengths, strict=True)):
        if length:
            text = texts.tokens[texts.first[row] : texts.end[row]]
            steps.rarity[row] = rarity_of_end(text, int(length), *rarity)
            tokens, counts = np.unique(values[index.entries(first, last)], return_counts=True)
            steps.leading[row] = tokens[counts.argmax()]
            steps.share[row] = counts[tokens == targets[row]].sum() / counts.sum()
    return steps


def limit_of(met: Array, entries: int) -> float:
    """The rarity that hardly any step of the model's own text, `met`, reaches by chance."""
    least = _BY_CHANCE * math.log(entries + 1)
    if len(met) < _FEWEST:
        return float(f"{1.5 * least:.4g}")
    # The tail is taken to fall off exponentially.
    usual = float(np.quantile(met, 1.0 - _TAIL))
    beyond = met[met > usual] - usual
    scale = float(beyond.mean()) if len(beyond) else 0.0
    return float(f"{max(least, usual + scale * math.log(_TAIL / _DISTURBED)):.4g}")


def curve_of(rarity: Array, p_knn: Array, p_lm: Array) -> tuple[float, float]:
    """Offset and slope of λ that make tokens likeliest; `rarity` is in multiples of the limit."""
    offsets, slopes = np.meshgrid(_OFFSETS, _SLOPES, indexing="ij")
    score = -_PRIOR * ((offsets - _OFFSET) ** 2 + (slopes - _SLOPE) ** 2)
    for rare, knn, lm in zip(rarity, p_knn, p_lm, strict=True):
        lmbda = 1.0 / (1.0 + np.exp(-(offsets + slopes * rare)))
        score += np.log(np.maximum(lmbda * knn + (1.0 - lmbda) * lm, 1e-30))
    best = int(score.argmax())
    return round(float(offsets.flat[best]), 4), round(float(slopes.flat[best]), 4)
