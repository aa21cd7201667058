"""Measures how the time of a query, the bytes and the memory grow with a datastore.

    python benchmarks/growth.py MODEL STORE TEXT --entries 200000 2000000 10000000

A datastore's keys are repeated, each time with noise, until there are as many as asked for. The
noise moves a key about as far as its nearest neighbor is. The files are those of knn-transformers,
so that the package imports them and chooses the index as for any datastore. Queries are states of a
text that the datastore does not hold. Each size is searched in a process of its own, which also
says how much memory the opening and the searches took. Times are that process's own, on one thread.
"""

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import beginnings, load, record, summary

import knn_logits
from knn_logits.engine.location import find_key
from knn_logits.index.opening import Indexes

PART = 100_000
QUERIES = 512
# So many of these are searched one at a time.
SINGLE = 128


def states_of(model, tokenizer, store, text):
    """Takes the states of held-out texts, as a datastore keeps them, float32 [512, dim]."""
    with tempfile.TemporaryDirectory() as folder:
        documents = beginnings(text, tokenizer, 8, 100)
        config = knn_logits.IndexConfig("exact")
        small = knn_logits.build_datastore(
            model, tokenizer, documents, folder, key=store.manifest.key.name, index=config
        )
        return np.asarray(small.keys(np.arange(len(small)))[:QUERIES], dtype=np.float32)


def nearest_apart(store, some):
    """Returns the median distance of some keys to their nearest other key."""
    ids = np.random.default_rng(1).choice(len(store), some, replace=False)
    queries = torch.from_numpy(store.keys(ids).astype(np.float32))
    found = knn_logits.Retriever(store, knn_logits.KNNConfig(k=2)).search(queries)
    return float(np.sqrt(np.median(found.distances.numpy().max(axis=1))))


def write_files(store, entries, folder, noise):
    """Writes so many keys and values, as knn-transformers lays them out."""
    dim = store.manifest.dim
    keys = np.lib.format.open_memmap(
        folder / f"dstore_gpt2_{entries}_{dim}_keys.npy", "w+", np.float16, (entries, dim)
    )
    values = np.lib.format.open_memmap(
        folder / f"dstore_gpt2_{entries}_{dim}_vals.npy", "w+", np.int64, (entries, 1)
    )
    numbers = np.random.default_rng(0)
    for first in range(0, entries, PART):
        ids = np.arange(first, min(first + PART, entries)) % len(store)
        part = store.keys(ids).astype(np.float32)
        if first >= len(store):
            part += numbers.standard_normal(part.shape, dtype=np.float32) * noise
        keys[first : first + len(ids)] = part
        values[first : first + len(ids), 0] = np.asarray(store.values)[ids]
    keys.flush()
    values.flush()


def memory():
    """Returns the private and shared memory in use, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":") for line in lines if ":" in line)
    return {name: int(fields[name].split()[0]) // 1024 for name in ("RssAnon", "RssFile")}


def searched(folder, queries, rounds, answers):
    """Opens a datastore and searches it, in a process of its own."""
    torch.set_num_threads(1)
    queries = torch.from_numpy(queries)
    before = memory()
    store = knn_logits.Datastore(folder)
    indexes = Indexes(threads=1)
    retrievers = {
        k: knn_logits.Retriever(store, knn_logits.KNNConfig(k=k), indexes=indexes)
        for k in (64, 1024)
    }
    found = {"ms_a_query": milliseconds(retrievers, queries, rounds)}
    after = memory()
    found["memory_mb"] = {name: after[name] - before[name] for name in after}
    answers.put(found)


def milliseconds(retrievers, queries, rounds):
    """Times searches, by the process's own time."""
    found = {}
    for k, retriever in retrievers.items():
        for way, batches in (
            ("one at a time", queries[:SINGLE].split(1)),
            (f"{QUERIES} at once", [queries]),
        ):
            times = []
            for _ in range(rounds + 1):
                started = time.process_time()
                for batch in batches:
                    retriever.search(batch)
                times.append(time.process_time() - started)
            number = sum(len(batch) for batch in batches)
            found[f"{way}, k {k}"] = round(1e3 * summary(times[1:])["median"] / number, 3)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("text", help="held-out text, as for a corpus")
    parser.add_argument("--entries", type=int, nargs="+", default=[200_000, 2_000_000, 10_000_000])
    parser.add_argument("--index", nargs="+", help="kinds of index (default: auto)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="threads of the builds")
    parser.add_argument("--name", default="growth", help="the name of the results' file")
    parser.add_argument("--folder", help="a folder for the files, which take 1.3 kB an entry")
    args = parser.parse_args()
    asked = [{"factory": one} for one in args.index or ["auto"]]
    model, tokenizer = load(args.model)
    store = knn_logits.Datastore(args.store)
    queries = states_of(model, tokenizer, store, args.text)
    dim = store.manifest.dim
    noise = nearest_apart(store, 2000) / np.sqrt(dim)
    module = find_key(model).module
    rows = []
    for entries in args.entries:
        work = Path(tempfile.mkdtemp(dir=args.folder))
        try:
            write_files(store, entries, work, noise)
            made = None
            for one in asked:
                started = time.perf_counter()
                config = knn_logits.IndexConfig(**one)
                if made is None:
                    made = knn_logits.import_datastore(
                        model, tokenizer, work, work / "store", index=config, threads=args.threads
                    ).store
                    for file in work.glob("dstore_*_keys.npy"):
                        file.unlink()
                else:
                    made = knn_logits.build_index(made, config, threads=args.threads)
                seconds = time.perf_counter() - started
                context = multiprocessing.get_context("spawn")
                answers = context.Queue()
                process = context.Process(
                    target=searched, args=(made.folder, queries, args.rounds, answers)
                )
                process.start()
                found = answers.get()
                process.join()
                kept = made.manifest.index
                size = sum(one.bytes for one in made.manifest.files if one.name.startswith("index"))
                row = {
                    "entries": entries,
                    "asked": one,
                    "index": kept.factory,
                    "nprobe": kept.nprobe,
                    "recall_at_64": kept.recall.value if kept.recall else 1.0,
                    "bytes_an_entry": round(size / entries, 1),
                    "seconds": round(seconds, 1),
                    **found,
                }
                print(json.dumps(row), file=sys.stderr, flush=True)
                rows.append(row)
        finally:
            shutil.rmtree(work)
    record(args.name, vars(args), {"key": module, "noise": round(float(noise), 4), "rows": rows})


if __name__ == "__main__":
    main()
