"""Measures recall, build time, bytes and search time of several indexes over a datastore's keys.

python benchmarks/index.py STORE --factories exact IVF1024,SQ8 IVF1024,PQ64
"""

import argparse
import shutil
import tempfile
import time

import numpy as np
import torch
from common import alternate, record, summary

import knn_logits
from knn_logits.index.opening import Indexes
from knn_logits.search.retriever import Retriever


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--factories", nargs="+", default=["exact", "IVF1024,SQ8"])
    parser.add_argument("--nprobe", nargs="+", type=int, default=[4, 8, 32])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        store = knn_logits.Datastore(shutil.copytree(args.store, f"{folder}/store"))
        ids = np.random.default_rng(0).integers(0, len(store), args.batch)
        queries = torch.from_numpy(store.keys(ids).astype(np.float32))
        for factory in args.factories:
            probes = [None] if factory == "exact" else args.nprobe
            for nprobe in probes:
                started = time.perf_counter()
                config = knn_logits.IndexConfig(factory, nprobe=nprobe)
                store = knn_logits.build_index(store, config)
                seconds = time.perf_counter() - started
                few, many = (
                    Retriever(store, knn_logits.KNNConfig(k=k), indexes=Indexes(threads=1))
                    for k in (64, 1024)
                )
                seconds_few, seconds_many = alternate(
                    lambda few=few: few.search(queries),
                    lambda many=many: many.search(queries),
                    args.rounds,
                )
                file = store.manifest.file("index.safetensors")
                recall = store.manifest.index.recall
                row = {
                    "index": factory,
                    "nprobe": store.manifest.index.nprobe,
                    "seconds_build_and_recall": round(seconds, 2),
                    "bytes_per_entry": round(file.bytes / len(store), 1) if file else None,
                    "recall_at_64": recall.value if recall else 1.0,
                    "ms_k64": round(1e3 * summary(seconds_few)["median"], 3),
                    "ms_k1024": round(1e3 * summary(seconds_many)["median"], 3),
                }
                rows.append(row)
                print(row, flush=True)
    record("index", vars(args), {"entries": len(store), "rows": rows})


if __name__ == "__main__":
    main()
