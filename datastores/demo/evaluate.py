"""Counts what the demo's README states: right answers, named sources, perplexity.

python datastores/demo/evaluate.py --half tuning --lmbda 0.2 0.6    # constant weights
python datastores/demo/evaluate.py                  # the final half, with the demo's gates
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import demo
import scoring
import text
import torch
from rich.console import Console

from knn_logits import (
    Datastore,
    Gate,
    KNNConfig,
    KNNLogitsProcessor,
    SequenceTrace,
    load_gate,
)

# Ordinary text differs from half to half, like the questions.
SEEDS = {"tuning": 98, "final": 99}
BATCH = 75
NEW_TOKENS = 14


def answers(
    model: Any,
    tokenizer: Any,
    prompts: list[str],
    knn: KNNLogitsProcessor | None,
    traced: int | None = None,
) -> list[tuple[str, SequenceTrace | None]]:
    """Greedy continuations up to the full stop, each with its trace.

    A trace takes four times as long as the text; `traced` bounds how many batches have one.
    """
    found: list[tuple[str, SequenceTrace | None]] = []
    for start in range(0, len(prompts), BATCH):
        inputs = tokenizer(
            prompts[start : start + BATCH], padding=True, padding_side="left", return_tensors="pt"
        )
        inputs.pop("token_type_ids", None)
        output = model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            logits_processor=[knn] if knn else [],
            pad_token_id=tokenizer.eos_token_id,
        )
        length = inputs["input_ids"].shape[1]
        texts = tokenizer.batch_decode(output[:, length:], skip_special_tokens=True)
        wanted = knn is not None and (traced is None or start < traced * BATCH)
        traces = list(knn.trace(output, tokenizer)) if knn and wanted else [None] * len(texts)
        found += [
            (one.split(".")[0].split("\n")[0].strip(), trace)
            for one, trace in zip(texts, traces, strict=True)
        ]
    return found


def named_source(trace: SequenceTrace) -> str | None:
    """The document with the largest influence on the answer's tokens."""
    shares: dict[str, float] = {}
    for token in trace.tokens:
        if "." in token.token:
            break
        for neighbor in token.neighbors:
            shares[neighbor.document] = shares.get(neighbor.document, 0.0) + neighbor.influence
    return max(shares, key=lambda name: shares[name], default=None)


def count(
    model: Any,
    tokenizer: Any,
    store: Datastore,
    rows: list[dict[str, str]],
    config: KNNConfig | None,
    lmbda: float | Gate = 0.0,
    traced: int | None = None,
) -> dict[str, float]:
    """Shares of right answers, and of right answers whose named source holds the fact.

    Sources are counted in the first `traced` batches of each wording, in all without it.
    """
    result: dict[str, float] = {}
    right = sources = 0
    for wording in ("seen", "new", "strange"):
        prompts = [row[wording] for row in rows]
        if config is None:
            found = answers(model, tokenizer, prompts, None)
        else:
            knn = KNNLogitsProcessor(
                model, store, k=config.k, lmbda=lmbda, temperature=config.temperature
            )
            with knn:
                found = answers(model, tokenizer, prompts, knn, traced)
        hits = [
            (row, trace)
            for row, (answer, trace) in zip(rows, found, strict=True)
            if answer == row["answer"]
        ]
        result[wording] = len(hits) / len(rows)
        if wording == "strange":
            continue
        named = [(row, named_source(trace)) for row, trace in hits if trace is not None]
        right += len(named)
        sources += sum(source == row["document"] for row, source in named)
    if config is not None and right:
        result["sources"] = sources / right
    return {name: round(share, 4) for name, share in result.items()}


def perplexity(
    model: Any,
    tokenizer: Any,
    store: Datastore,
    texts: list[str],
    config: KNNConfig,
    lmbda: float | Gate,
) -> dict[str, float]:
    """Of texts, by the model alone and with the datastore."""
    found = scoring.score(model, tokenizer, store, [(one, 1) for one in texts], config, lmbda)
    by_lm, by_knn, share = found.by_lm.double(), found.by_knn.double(), found.lmbda.double()
    mixture = share * by_knn.exp() + (1.0 - share) * by_lm.exp()
    without = math.exp(-by_lm.mean().item())
    with_store = math.exp(-mixture.clamp(min=1e-30).log().mean().item())
    return {
        "without": round(without, 3),
        "with": round(with_store, 3),
        "change": round(with_store / without - 1, 4),
    }


def ordinary_texts(kind: str, count: int, seed: int) -> dict[str, list[str]]:
    """Text of the kinds of the training text: without facts, and about other worlds."""
    rng = random.Random(seed)
    texts = {
        "plain sentences, this kind" if of == kind else "plain sentences, other kind": list(
            text.plain_paragraphs(rng, of, count)
        )
        for of in text.KINDS
    }
    return texts | {"pages of other worlds": text.other_pages(seed, count)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half", choices=("tuning", "final"), default="final")
    parser.add_argument("--model", type=Path, default=demo.MODEL)
    parser.add_argument("--stores", type=Path, default=demo.STORES)
    parser.add_argument("--gates", type=Path, default=demo.GATES)
    parser.add_argument("--lmbda", type=float, nargs="*", default=[], help="constant weights")
    parser.add_argument("--gate", nargs="*", default=[], choices=("distance", "learned"))
    parser.add_argument("--temperature", type=float, nargs="*", default=[])
    parser.add_argument("--k", type=int, nargs="*", default=[])
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--traced", type=int, help="batches of 75 whose sources are counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = demo.load_model(options.model)
    console = Console(stderr=True)
    gates = options.gate or ([] if options.lmbda else [demo.GATE])
    grid = [
        (KNNConfig(k=k, temperature=temperature), lmbda)
        for k in options.k or [demo.SETTINGS.k]
        for temperature in options.temperature or [demo.SETTINGS.temperature]
        for lmbda in (*options.lmbda, *gates)
    ]
    results: list[dict[str, Any]] = []
    for kind in demo.KINDS:
        store = demo.open_store(kind, model, tokenizer, options.stores, console)
        rows = demo.questions_of(kind, options.half)
        texts = ordinary_texts(kind, options.texts, SEEDS[options.half]) if options.texts else {}
        common = {"corpus": kind, "half": options.half, "questions": len(rows)}
        results.append(common | {"without": count(model, tokenizer, store, rows, None)})
        print(json.dumps(results[-1]), flush=True)
        for config, lmbda in grid:
            begin = time.perf_counter()
            gate: float | Gate = lmbda
            if isinstance(lmbda, str):
                gate = load_gate(demo.gate_file(kind, lmbda, options.gates))
            row: dict[str, Any] = common | {"settings": asdict(config) | {"lmbda": lmbda}}
            row["with"] = count(model, tokenizer, store, rows, config, gate, options.traced)
            row["perplexity"] = {
                name: perplexity(model, tokenizer, store, of, config, gate)
                for name, of in texts.items()
            }
            row["texts"] = options.texts
            row["seconds"] = round(time.perf_counter() - begin, 1)
            results.append(row)
            print(json.dumps(row), flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
