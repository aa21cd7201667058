"""Fits how much the neighbors' vote counts at each token, on the tuning half.

The text to fit on: questions with their answers, of which the answers' tokens count, and ordinary
text that the datastore may know nothing about. The questions are the tuning half's and free ones,
with productions that training has, and among them are some that no document answers: there the
model's own silence is right. `evaluate.py` and `free.py` count with other questions and other text.

    python datastores/demo/gates.py          # writes gates/, one and a half minutes of a core
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import demo
import evaluate
import free
import lessons
import scoring
import torch
from rich.console import Console

from knn_logits import (
    Datastore,
    fit_distance_gate,
    fit_learned_gate,
    save_gate,
)

TEXTS = 450
QUESTIONS = 1800


def texts_to_fit(
    kind: str, tokenizer: Any, count: int, questions: int
) -> Iterator[tuple[str, int]]:
    """Texts, and from which token on each counts.

    An answer ends where its sentence does. The neighbors would go on, so the gate has to see that.
    """
    end = tokenizer.eos_token
    for row in demo.questions_of(kind, "tuning"):
        for wording in ("seen", "new"):
            prompt = row[wording]
            answer = f" {row['answer']}.{end}"
            yield prompt + answer, len(tokenizer(prompt)["input_ids"])
    seed = free.SEEDS["tuning"]
    asked = [
        (row["prompt"], f" {row['answer']}.")
        for row in free.grammar_questions(kind, questions, seed, held_out=False)
    ]
    asked += [
        (row["prompt"], lessons.SILENCE)
        for row in free.unanswerable(kind, questions // 2, seed, held_out=False)
    ]
    for prompt, answer in asked:
        prompt = prompt.rstrip()
        yield prompt + answer + end, len(tokenizer(prompt)["input_ids"])
    for texts in evaluate.ordinary_texts(kind, count, evaluate.SEEDS["tuning"]).values():
        for one in texts:
            yield one, 1


def arrays_to_fit(
    kind: str, model: Any, tokenizer: Any, store: Datastore, count: int, questions: int
) -> tuple[Any, Any, Any]:
    """Features, log p_LM and log p_kNN of the tokens that count."""
    texts = list(texts_to_fit(kind, tokenizer, count, questions))
    found = scoring.score(model, tokenizer, store, texts)
    return found.features.numpy(), found.by_lm.double().numpy(), found.by_knn.double().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=demo.MODEL)
    parser.add_argument("--stores", type=Path, default=demo.STORES)
    parser.add_argument("--texts", type=int, default=TEXTS, help="ordinary texts of each sort")
    parser.add_argument("--questions", type=int, default=QUESTIONS, help="free ones")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=demo.GATES)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = demo.load_model(options.model)
    options.out.mkdir(parents=True, exist_ok=True)
    for kind in demo.KINDS:
        store = demo.open_store(kind, model, tokenizer, options.stores, Console(stderr=True))
        features, by_lm, by_knn = arrays_to_fit(
            kind, model, tokenizer, store, options.texts, options.questions
        )
        distance = fit_distance_gate(features[:, 0], by_lm, by_knn, demo.METRIC)
        learned = fit_learned_gate(features, by_lm, by_knn, demo.METRIC)
        for gate in (distance, learned):
            save_gate(gate, demo.gate_file(kind, gate.kind, options.out))
        print(kind)
        for nearest, lmbda in zip(distance.middles.tolist(), distance.lmbdas.tolist(), strict=True):
            print(f"  similarity {nearest:.3f}  λ {lmbda:.3f}")


if __name__ == "__main__":
    main()
