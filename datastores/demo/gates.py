"""Fits how much the neighbors' vote counts, by how near the nearest is, on the tuning half.

The text to fit on: the tuning half's questions with their answers, of which the answers' tokens
count, and ordinary text that the datastore may know nothing about. `evaluate.py` counts with other
questions and other text.

    python datastores/demo/gates.py          # writes gates/manual.safetensors, gates/chronicle...
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import demo
import evaluate
import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from knn_logits import Datastore, DistanceGate, Neighbors, explain, fit_distance_gate, save_gate

TEXTS = 150


class Recorder:
    """A gate that lets all through alike, and notes how near the nearest neighbors are."""

    def __init__(self) -> None:
        self.nearest: list[float] = []

    def lmbda(self, neighbors: Neighbors, metric: str, log_p_lm: Tensor) -> Tensor:
        assert metric == demo.METRIC
        self.nearest += neighbors.distances.amax(-1).tolist()
        return torch.full((neighbors.rows,), 0.5)


def texts_to_fit(kind: str, tokenizer: Any, count: int) -> Iterator[tuple[str, int]]:
    """Texts, and from which token on each counts."""
    for row in demo.questions_of(kind, "tuning"):
        for wording in ("seen", "new"):
            prompt = row[wording]
            yield f"{prompt} {row['answer']}.", len(tokenizer(prompt)["input_ids"])
    for texts in evaluate.ordinary_texts(kind, count, evaluate.SEEDS["tuning"]).values():
        for one in texts:
            yield one, 1


def fit(kind: str, model: Any, tokenizer: Any, store: Datastore, count: int) -> DistanceGate:
    """The gate of a corpus's datastore."""
    nearest: list[float] = []
    log_p: list[list[float]] = []
    for text, first in texts_to_fit(kind, tokenizer, count):
        recorder = Recorder()
        trace = explain(model, tokenizer, store, text, lmbda=recorder, max_neighbors=1, check=False)
        # The first token of a text has nothing before it, and no trace.
        nearest += recorder.nearest[first - 1 :]
        for token in trace[0].tokens[first - 1 :]:
            assert token.p_lm is not None
            assert token.p_knn is not None
            log_p.append([math.log(p) if p > 0.0 else -math.inf for p in (token.p_lm, token.p_knn)])
    by_lm, by_knn = np.array(log_p).T
    return fit_distance_gate(np.array(nearest), by_lm, by_knn, demo.METRIC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=demo.MODEL)
    parser.add_argument("--stores", type=Path, default=demo.STORES)
    parser.add_argument("--texts", type=int, default=TEXTS, help="ordinary texts of each sort")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=demo.GATES)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = demo.load_model(options.model)
    options.out.mkdir(parents=True, exist_ok=True)
    for kind in demo.KINDS:
        store = demo.open_store(kind, model, tokenizer, options.stores, Console(stderr=True))
        gate = fit(kind, model, tokenizer, store, options.texts)
        save_gate(gate, options.out / f"{kind}.safetensors")
        print(kind)
        for nearest, lmbda in zip(gate.middles.tolist(), gate.lmbdas.tolist(), strict=True):
            print(f"  similarity {nearest:.3f}  λ {lmbda:.3f}")


if __name__ == "__main__":
    main()
