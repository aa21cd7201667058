"""Fits how much the neighbors' vote counts at each token, on the tuning half.

The text to fit on: questions with their answers, of which the answers' tokens count, and ordinary
text that the datastore may know nothing about. The questions are the tuning half's and free ones,
with productions that training has, and among them are some that no document answers: there the
model's own silence is right. `evaluate.py` and `free.py` count with other questions and other text.

    python datastores/demo/gates.py          # writes gates/, about a minute
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
import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from knn_logits import (
    Datastore,
    Neighbors,
    fit_distance_gate,
    fit_learned_gate,
    gate_features,
    save_gate,
)

TEXTS = 150
QUESTIONS = 600
BATCH = 32


def texts_to_fit(
    kind: str, tokenizer: Any, count: int, questions: int
) -> Iterator[tuple[str, int]]:
    """Texts, and from which token on each counts."""
    for row in demo.questions_of(kind, "tuning"):
        for wording in ("seen", "new"):
            prompt = row[wording]
            yield f"{prompt} {row['answer']}.", len(tokenizer(prompt)["input_ids"])
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
        yield prompt + answer, len(tokenizer(prompt)["input_ids"])
    for texts in evaluate.ordinary_texts(kind, count, evaluate.SEEDS["tuning"]).values():
        for one in texts:
            yield one, 1


def states_and_logits(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The keys of a batch of texts, and log p_LM."""
    states: list[Tensor] = []
    place = model.model.layers[-1].mlp
    hook = place.register_forward_pre_hook(lambda _, given: states.append(given[0]))
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
    hook.remove()
    return states[0], logits.float().log_softmax(-1)


def arrays_to_fit(
    kind: str, model: Any, tokenizer: Any, store: Datastore, count: int, questions: int
) -> tuple[Any, Any, Any]:
    """Features, log p_LM and log p_kNN of the tokens that count.

    They are those that `explain` would give, for many texts at once: the index is exact.
    """
    keys = torch.from_numpy(np.asarray(store.keys(np.arange(len(store))))).float()
    keys, values = torch.nn.functional.normalize(keys, dim=-1), store.values.long()
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    texts = sorted(texts_to_fit(kind, tokenizer, count, questions), key=lambda one: len(one[0]))
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        encoded = tokenizer([text for text, _ in batch], padding=True, return_tensors="pt")
        ids, mask = encoded["input_ids"], encoded["attention_mask"]
        states, log_p = states_and_logits(model, ids, mask)
        place = torch.arange(ids.shape[1])
        first = torch.tensor([first for _, first in batch])
        # A token is predicted from the place before it.
        used = ((place >= first[:, None]) & (mask > 0))[:, 1:]
        states, log_p, target = states[:, :-1][used], log_p[:, :-1][used], ids[:, 1:][used]
        scores = torch.nn.functional.normalize(states.float(), dim=-1) @ keys.T
        near, at = scores.topk(min(demo.SETTINGS.k, len(keys)), dim=-1)
        neighbors = Neighbors(at, near, values[at])
        weights = (near / demo.SETTINGS.temperature).softmax(-1)
        by_knn = (weights * (values[at] == target[:, None])).sum(-1).log()
        by_lm = log_p.gather(-1, target[:, None])[:, 0]
        found.append((gate_features(neighbors, demo.METRIC, log_p), by_lm, by_knn))
    features, lm, knn = (torch.cat(parts).numpy() for parts in zip(*found, strict=True))
    return features, lm.astype(np.float64), knn.astype(np.float64)


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
