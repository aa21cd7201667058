"""What the scripts here share: a fast folder, a report of cases, and their command line."""

from __future__ import annotations

import argparse
import logging
import os
from collections import Counter

import faiss
import torch


def fast_folder():
    """Where thousands of small files are written quickly."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Report:
    """Counts how cases ended, and notes those that ended wrongly."""

    def __init__(self, number, seed, say):
        self.counts, self.wrong = Counter(), []
        self._number, self._seed, self._say = number, seed, say

    def note(self, turn, what, result, text, *, fine):
        self.counts[result] += 1
        if not fine:
            lines = text.strip().splitlines()[-8:] if text else [""]
            self.wrong.append(f"{what} (seed {self._seed}, {turn}): {result}")
            self._say(self.wrong[-1], "\n    ".join(["", *lines]), flush=True)
        if (turn + 1) % 500 == 0:
            self._say(f"{turn + 1} of {self._number}", flush=True)


def quiet():
    """One thread, and nothing that is remembered of a datastore that was opened."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    logging.getLogger("knn_logits").setLevel(logging.ERROR)
    os.environ["KNN_LOGITS_CACHE"] = "/dev/null/none"


def main(run, default):
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=default)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts, wrong = run(arguments.number, arguments.seed)
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"failures: {len(wrong)}")
    return 1 if wrong else 0
