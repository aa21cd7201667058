"""Names the passage that says a span of an answer, by the words they share, without a model.

    python benchmarks/sources.py FOLDER

FOLDER has the files of two public sets whose answers say which passage each span is from:

    verifiability_granular_dev.jsonl,    Anirudh-Phukan/verifiability-granular (Phukan et al. 2024)
    verifiability_granular_test.jsonl
    quotesum_dev.jsonl                   google-research-datasets/QuoteSum, v1/dev.jsonl
                                         (Schuster et al. 2023)

The weights of the clause, the sentence and the question were chosen on Verifiability-Granular's dev
part and on half of QuoteSum's questions.
"""

import argparse
import json
import math
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from answer_scores import interval
from common import record

WORD = re.compile(r"\w+")
MARKED = re.compile(r"\[ ?(\d+) ((?:[^\[\]]|\[[^\[\]]*\])*)\]")
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")
CLAUSE = re.compile(r"[.,;:](?:\s+|$)|\b(?:while|whereas|and|but)\b|\n")
# What the words around a span count for, beside its own.
WEIGHTS = {"clause": 0.2, "sentence": 0.1, "question": 0.1}


@dataclass
class Span:
    """Characters `start` to `end` of an answer, and the passage they are from."""

    question: str
    answer: str
    start: int
    end: int
    passages: list[str]
    gold: int


def unmarked(text):
    """Takes the marks off an answer: its text, and each marked span's start, end and passage."""
    parts, spans, size, last = [], [], 0, 0
    for mark in MARKED.finditer(text):
        before, said = text[last : mark.start()], mark[2].removesuffix(" ")
        size += len(before)
        spans.append((size, size + len(said), int(mark[1]) - 1))
        size += len(said)
        parts += [before, said]
        last = mark.end()
    return "".join([*parts, text[last:]]), spans


def spans_of(file):
    """The spans of one of the two sets; a passage's title stands before it."""
    spans = []
    for row in map(json.loads, file.read_text("utf-8").splitlines()):
        answer, marks = unmarked(row["summary"])
        passages = row.get("passages") or [
            f"{row[f'title{at}']}. {row[f'source{at}']}" for at in range(1, 9) if row[f"source{at}"]
        ]
        spans += [Span(row["question"], answer, *mark[:2], passages, mark[2]) for mark in marks]
    return spans


def words(text):
    return set(WORD.findall(text.lower()))


def around(text, start, end, border):
    """The part of a text between the last border before a span and the first one after it."""
    first = max((cut.end() for cut in border.finditer(text) if cut.end() <= start), default=0)
    last = min(
        (cut.start() for cut in border.finditer(text) if cut.start() >= end), default=len(text)
    )
    return text[first:last]


def shared_words(span, weights):
    """Scores each passage by the idf of the words that it shares with a span and its surroundings.

    The idf is over the given passages.
    """
    passages = [words(passage) for passage in span.passages]
    frequency = Counter(word for passage in passages for word in passage)
    parts = {
        "clause": around(span.answer, span.start, span.end, CLAUSE),
        "sentence": around(span.answer, span.start, span.end, SENTENCE),
        "question": span.question,
    }
    weight = Counter(dict.fromkeys(words(span.answer[span.start : span.end]), 1.0))
    for part, factor in sorted(weights.items()):
        for word in words(parts[part]):
            weight[word] += factor
    size = len(passages)
    for word in weight:
        weight[word] *= math.log(1 + (size - frequency[word] + 0.5) / (frequency[word] + 0.5))
    # An exact sum is the same in any order of a set, so that ties stay ties.
    return [math.fsum(weight[word] for word in weight.keys() & passage) for passage in passages]


def longest_run(span, _weights):
    """Scores each passage by the longest run of words that it shares with a span."""
    said = WORD.findall(span.answer[span.start : span.end].lower())
    scores = []
    for passage in span.passages:
        text = f" {' '.join(WORD.findall(passage.lower()))} "
        runs = ((i, j) for i in range(len(said)) for j in range(len(said), i, -1))
        scores.append(
            max((j - i for i, j in runs if f" {' '.join(said[i:j])} " in text), default=0)
        )
    return scores


RULES = {
    "longest run of words": (longest_run, {}),
    "words of the span": (shared_words, {}),
    "and of its sentence and question": (shared_words, {"sentence": 0.1, "question": 0.1}),
    "and of its clause": (shared_words, WEIGHTS),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dev", action="store_true", help="leave the test part out")
    parser.add_argument("--name", default="sources", help="of the file of results")
    options = parser.parse_args()
    names = ["verifiability_granular_dev", "verifiability_granular_test", "quotesum_dev"]
    parts = {
        name: spans_of(options.folder / f"{name}.jsonl")
        for name in names
        if not (options.dev and name.endswith("test"))
    }
    held = [span for span in parts["quotesum_dev"] if zlib.crc32(span.question.encode()) % 2]
    parts["quotesum_dev, the other half"] = held
    result = {}
    for part, spans in parts.items():
        result[part] = {"spans": len(spans)}
        for name, (rule, weights) in RULES.items():
            right = [int(np.argmax(rule(span, weights))) == span.gold for span in spans]
            result[part][name] = {"right": sum(right), "share": round(sum(right) / len(right), 4),
                                  "interval": interval(right)}  # fmt: skip
    record(options.name, {"folder": str(options.folder), "weights": WEIGHTS}, result)


if __name__ == "__main__":
    main()
