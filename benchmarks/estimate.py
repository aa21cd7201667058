"""What `estimate` says beforehand beside what then happens, at several sizes and kinds of index.

Each step runs in a process of its own, so that its memory is its own: the estimate, the build, and
a search with the datastore open. All run on one thread, and times are the process's own: other
programs of the machine do not count, neither in what is said nor in what was.

    python benchmarks/estimate.py MODEL CORPUS --entries 20000 60000 200000
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import first_documents, load, record

import knn_logits

K = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("--entries", type=int, nargs="+", default=[20_000, 60_000, 200_000])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--chosen", action="store_true", help="only the index that build chooses")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--index", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.step:
        print(json.dumps(STEPS[args.step](args)))
        return
    sizes = []
    for entries in args.entries:
        sizes.append(one_size(args, entries))
        # What was measured is kept, also if a later size is stopped.
        record("estimate", {"model": args.model, "corpus": args.corpus}, {"sizes": sizes})


def one_size(args, entries):
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        said = step(args, "estimate", store, entries)
        built = step(args, "build", store, entries)
        kinds = []
        for need in said["needs"]:
            if args.chosen and not need["chosen"]:
                continue
            if not need["chosen"]:
                step(args, "reindex", store, entries, need["index"])
            searched = step(args, "search", store, entries)
            pairs = {
                "bytes": (need["bytes"], folder_bytes(store)),
                "memory": (need["memory"], searched["memory"]),
                "milliseconds": (need["milliseconds"], searched["milliseconds"]),
                "batch_milliseconds": (need["batch_milliseconds"], searched["batch_milliseconds"]),
            }
            if need["chosen"]:
                pairs["seconds"] = (need["seconds"], built["seconds"])
                pairs["building_memory"] = (need["building_memory"], built["memory"])
            kinds.append(
                {
                    "index": need["index"],
                    "nprobe": {"supposed": need["nprobe"], "built": searched["nprobe"]},
                    "crowded": searched["crowded"],
                    **{
                        name: {"said": one, "was": other, "ratio": one / other}
                        for name, (one, other) in pairs.items()
                    },
                }
            )
        return {"entries": built["entries"], "kinds": kinds}


def step(args, name, store, entries, index=None):
    call = [sys.executable, __file__, args.model, args.corpus, "--step", name, "--store", store]
    call += ["--entries", str(entries), "--rounds", str(args.rounds)]
    call += ["--index", index] if index else []
    call += ["--chosen"] if args.chosen else []
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def estimate(args):
    model, tokenizer = load(args.model)
    documents = first_documents(args.corpus, tokenizer, args.entries[0])
    found = knn_logits.estimate_build(
        model, tokenizer, documents, k=K, compare=not args.chosen, threads=1
    )
    needs = [dataclasses.asdict(one) for one in found.needs]
    for one in needs:
        one["seconds"] /= found.slowed
    return {"needs": needs}


def build(args):
    model, tokenizer = load(args.model)
    documents = first_documents(args.corpus, tokenizer, args.entries[0])
    started = time.process_time()
    store = knn_logits.build_datastore(model, tokenizer, documents, args.store, k=K, threads=1)
    seconds = time.process_time() - started
    return {"entries": len(store), "seconds": seconds, "memory": most_memory()}


def reindex(args):
    knn_logits.build_index(args.store, knn_logits.IndexConfig(args.index), threads=1)
    return {}


def search(args):
    model, _ = load(args.model)
    store = knn_logits.Datastore(args.store)
    retriever = knn_logits.Memory(model, store, threads=1, k=K, retomaton=False).retriever
    spread = torch.linspace(0, len(store) - 1, args.rounds * 8).long()
    queries = torch.from_numpy(store.keys(spread.numpy())).float()
    # The rows of a batch continue different texts, so their neighbors lie apart.
    queries = queries[torch.randperm(len(queries), generator=torch.manual_seed(1))]
    # A key itself would find its own text; noise takes it to where a new text's state may be.
    queries += 0.1 * queries.std() * torch.randn(queries.shape, generator=torch.manual_seed(0))
    times = {}
    for rows in (1, 8):
        batches = queries[: args.rounds * rows].split(rows)
        retriever.search(batches[0])
        spent = []
        for batch in batches:
            started = time.process_time()
            retriever.search(batch)
            spent.append(time.process_time() - started)
        times[rows] = 1e3 * sorted(spent)[len(spent) // 2]
    sizes = getattr(retriever.index, "list_sizes", lambda: None)()
    crowded = None
    if sizes is not None and len(sizes):
        crowded = float((sizes.astype(float) ** 2).sum() * len(sizes) / sizes.sum() ** 2)
    return {
        "memory": most_memory(),
        "milliseconds": times[1],
        "batch_milliseconds": times[8],
        "nprobe": store.manifest.index.nprobe,
        "crowded": crowded,
    }


def most_memory():
    """The most memory that this process has held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def folder_bytes(folder):
    return sum(path.stat().st_size for path in Path(folder).iterdir())


STEPS = {"estimate": estimate, "build": build, "reindex": reindex, "search": search}


if __name__ == "__main__":
    main()
