"""Whether `--budget` and `--target-recall` keep what they promise: bytes, memory, recall.

python benchmarks/budget.py MODEL STORE TEXT [--budgets 12 20 60] [--targets 0.8 0.9 0.95]

Budgets are in millions of bytes. Each index is built over a copy of STORE. Its recall is measured
with states of TEXT, which the datastore does not hold, and its memory in a process of its own.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from common import beginnings, load, record
from compression import copy_of, in_own_process, recall, states_of

import knn_logits
from knn_logits.building import choosing


def row_of(model, folder, store, queries, truth):
    """What an index takes and finds, beside what it was chosen for."""
    record_of = store.manifest.index
    index = knn_logits.Memory(model, store, threads=1).retriever.index
    kind = next(one for one in record_of.tried if one.factory == record_of.factory)
    return {
        "index": record_of.factory,
        "nprobe": record_of.nprobe,
        "bytes_said": kind.bytes,
        "bytes": store.manifest.file("index").bytes,
        "memory": in_own_process(folder)["memory"],
        "recall_of_the_sample": kind.recall,
        "recall_of_stored_keys": record_of.recall.value,
        "recall_of_held_out_states": round(recall(index, queries, truth, 64), 4),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("text")
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--budgets", type=float, nargs="+", default=[12, 20, 60])
    parser.add_argument("--targets", type=float, nargs="+", default=[0.8, 0.9, 0.95])
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    texts = beginnings(args.text, tokenizer, args.texts, args.tokens)
    asked = [{"budget": int(1e6 * one)} for one in args.budgets]
    asked += [{"target_recall": one} for one in args.targets]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "store"
        exact = knn_logits.build_index(copy_of(args.store, folder), "exact")
        memory = knn_logits.Memory(model, exact, threads=1)
        queries = states_of(model, tokenizer, memory, texts)
        search = memory.retriever.index.search
        truth = torch.cat([search(some, 64)[1] for some in queries.split(64)])
        # Each build would compare the kinds again, with the same result.
        tried = choosing.measured_kinds(exact)
        choosing.measured_kinds = lambda *_: tried
        for one in asked:
            store = knn_logits.build_index(
                copy_of(args.store, folder), knn_logits.IndexConfig(**one), threads=1
            )
            rows.append(one | row_of(model, folder, store, queries, truth))
            print(rows[-1], flush=True)
    record("budget", vars(args), {"entries": len(exact), "rows": rows})


if __name__ == "__main__":
    main()
