"""Scores answers to questions: contained, exact match and F1 as SQuAD does, and their intervals."""

import re
import string
from collections import Counter

import numpy as np

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text):
    """Lower case, without punctuation and articles, single spaces (SQuAD's script)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def contained(text, answers):
    """Whether an answer stands in a text, as whole words of both in normal form."""
    padded = f" {normalized(text)} "
    return any(f" {normalized(answer)} " in padded for answer in answers if normalized(answer))


def exact_match(text, answers):
    return any(normalized(text) == normalized(answer) for answer in answers)


def f1(text, answers):
    """The largest F1 of the words that a text shares with an answer (SQuAD's script)."""
    return max(
        (_f1(normalized(text).split(), normalized(one).split()) for one in answers), default=0
    )


def _f1(words, gold):
    if not words or not gold:
        return float(words == gold)
    shared = sum((Counter(words) & Counter(gold)).values())
    return 2 * shared / (len(words) + len(gold))


def scores(text, answers):
    """The scores of one answer, each from 0 to 1."""
    return {
        "contained": float(contained(text, answers)),
        "exact_match": float(exact_match(text, answers)),
        "f1": f1(text, answers),
    }


def interval(values, samples=2000, seed=0):
    """The 95% interval of the mean by a bootstrap over questions; of a difference, if paired."""
    values = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(seed)
    drawn = values[random.integers(0, len(values), (samples, len(values)))].mean(axis=1)
    return [round(float(limit), 4) for limit in np.percentile(drawn, (2.5, 97.5))]
