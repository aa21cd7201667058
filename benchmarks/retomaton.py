"""Measures tokens per second of an evaluation for the model alone, kNN-LM and RetoMaton.

python benchmarks/retomaton.py MODEL STORE TEXT --without STORE_WITHOUT_CLUSTERS
"""

import argparse
import statistics
from itertools import islice

import torch
from common import load, record

import knn_logits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("store", help="a datastore with clusters")
    parser.add_argument("text", help="held-out text, in the form of a corpus")
    parser.add_argument("--without", help="the same store without clusters")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--documents", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    documents = list(islice(knn_logits.read_corpus([args.text]), args.documents))
    ways = {"model": (None, {}), "kNN-LM": (args.store, {})}
    if args.without:
        ways["RetoMaton, pointers"] = (args.without, {"retomaton": True})
    ways["RetoMaton, clusters"] = (args.store, {"retomaton": True})
    settings = {"samples": 0, "threads": 1, "check": False, "k": 1024}
    seconds = {name: [] for name in ways}
    rows = {}
    for turn in range(args.rounds + 1):
        for name, (store, more) in ways.items():
            window = knn_logits.WindowConfig(512, 256)
            found = knn_logits.evaluate(
                model, tokenizer, store, documents, window=window, **settings, **more
            )
            if turn:
                seconds[name].append(found.seconds)
            measures = found.total.perplexity
            mixture = measures.lm if store is None else measures.interpolated
            rows[name] = {
                "tokens": found.total.tokens,
                "perplexity": round(float(mixture), 2),
                "searches_saved": round(found.searches_saved / found.total.tokens, 3),
            }
    for name, row in rows.items():
        row["tokens_per_second"] = round(row["tokens"] / statistics.median(seconds[name]), 1)
        row["fastest"] = round(row["tokens"] / min(seconds[name]), 1)
    record("retomaton", vars(args), rows)


if __name__ == "__main__":
    main()
