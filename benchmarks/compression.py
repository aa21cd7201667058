"""Perplexity against the bytes of an entry, for compressed indexes and for keys on demand.

python benchmarks/compression.py MODEL STORE CORPUS TEXT [--texts 8] [--tokens 1024] [--nprobe 16]

Each kind of index is built over a copy of STORE, whose documents are the first of CORPUS. All visit
the same number of lists, so that only the codes differ. Recall is that of states of TEXT, which the
datastore does not hold. Perplexity is measured under STORE's settings, and
under settings that are chosen on half of the texts and measured on the other half. Times are those
of a batch of eight, in turn with the exact search.
"""

import argparse
import contextlib
import ctypes
import gc
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import RESULTS, alternate, beginnings, load, record

import knn_logits
from knn_logits.index.choice import choose_lists
from knn_logits.index.opening import Indexes

# The name of each row, and its index.
KINDS = {
    "exact": "exact",
    "SQ8": "IVF{lists},SQ8",
    "SQ4": "IVF{lists},SQ4",
    "RaBitQ": "IVF{lists},RaBitQ",
    "PQ64": "IVF{lists},PQ64",
}
# Where the name of a point stands that would cover another's, in points from its own place.
LABELS = {
    "SQ4": (20, -3),
    "SQ8": (-6, 7),
}
ON_DEMAND = "keys on demand"
QUERIES = 1024
# Options that do not change what is measured.
LEFT_OUT = ("memory", "memory_again", "plot", "only")


def states_of(model, tokenizer, memory, texts):
    """States of texts at the key's place, float32 [QUERIES, dim]; each text's first window."""
    from knn_logits.engine.forward import key_states_and_logits

    window = memory.stores[0].manifest.windows.window
    found = []
    for text in texts:
        ids = tokenizer(text.text, return_tensors="pt", verbose=False)["input_ids"][:, :window]
        with torch.no_grad():
            states, _ = key_states_and_logits(
                model, memory.location, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            )
        found.append(states[0].float())
    states = torch.cat(found)
    return states[torch.linspace(0, len(states) - 1, QUERIES).long()]


def recall(index, queries, truth, k):
    """The share of the k true neighbors of each query that an index finds."""
    found = [
        len(set(row) & set(true)) / k
        for batch, near in zip(queries.split(64), truth[:, :k].split(64), strict=True)
        for row, true in zip(index.search(batch, k)[1].tolist(), near.tolist(), strict=True)
    ]
    return statistics.fmean(found)


def compare_times(index, exact, queries, k, rounds):
    """Milliseconds a query of an index and of the exact search, each round with other queries."""
    batches = itertools.cycle(queries.split(8))
    own, other = alternate(
        lambda: index.search(next(batches), k), lambda: exact.search(next(batches), k), rounds
    )
    of_one = [1e3 * statistics.median(one) / 8 for one in (own, other)]
    ratio = statistics.median(a / b for a, b in zip(own, other, strict=True))
    return {"milliseconds": of_one[0], "exact_milliseconds": of_one[1], "ratio": ratio}


def perplexities(model, tokenizer, memory, texts):
    """Perplexity under the datastore's settings, and under fitted ones."""
    started = time.process_time()
    found = knn_logits.evaluate(model, tokenizer, memory, texts, samples=0, allow_overlap=True)
    seconds = time.process_time() - started
    fitted = knn_logits.tune(model, tokenizer, memory, texts, samples=0, allow_overlap=True)
    return {
        "tokens": found.total.tokens,
        "lm": found.total.perplexity.lm,
        "perplexity": found.total.perplexity.interpolated,
        "cpu_milliseconds_a_token": 1e3 * seconds / found.total.tokens,
        "fitted": {
            "perplexity": fitted.held_out.perplexity,
            "k": fitted.k,
            "lmbda": fitted.lmbda,
            "temperature": fitted.temperature,
        },
    }


def in_own_process(folder):
    """Bytes that an open index adds to a process."""
    call = [sys.executable, __file__, "", str(folder), "", "", "--memory"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def memory_of(folder):
    """Opens an index, asks it once, and prints what it takes, with the entries' counts."""
    store = knn_logits.Datastore(folder)
    query = torch.zeros(1, store.manifest.dim)

    def opened():
        return knn_logits.Retriever(store, knn_logits.KNNConfig(), indexes=Indexes(threads=1))

    # The first opening loads programs and tables as well, which are not the index's.
    opened().search(query)
    returned()
    before = held()
    retriever = opened()
    retriever.search(query)
    returned()
    print(json.dumps({"memory": held() - before}))


def returned():
    """Gives memory that is free back to the system, which would count as held otherwise."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def held():
    """Memory of this process that no file lends it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def copy_of(store, folder):
    shutil.rmtree(folder, ignore_errors=True)
    return knn_logits.Datastore(shutil.copytree(store, folder))


def built(args, factory, folder):
    """A copy of the datastore with another index, and the CPU seconds of making that."""
    started = time.process_time()
    config = knn_logits.IndexConfig(factory, nprobe=args.nprobe)
    if factory == "exact":
        config = knn_logits.IndexConfig("exact")
    store = knn_logits.build_index(copy_of(args.store, folder / "other"), config, threads=1)
    return store, time.process_time() - started


def memory_again(args, kinds, rows, folder):
    """Yields the rows with their memory measured again."""
    for name, factory in kinds.items():
        store, _ = built(args, factory, folder)
        took = in_own_process(store.folder)["memory"] / len(store)
        yield rows[name] | {"memory_bytes_an_entry": took}


def measure(args, kinds, model, tokenizer, texts, folder):
    """Yields the rows of the table: one for each kind of index."""
    exact_store = knn_logits.build_index(copy_of(args.store, folder / "exact"), "exact")
    memory = knn_logits.Memory(model, exact_store, threads=1)
    queries = states_of(model, tokenizer, memory, texts)
    exact = memory.retriever.index
    truth = torch.cat([exact.search(some, 1024)[1] for some in queries.split(64)])
    for name, factory in kinds.items():
        store, seconds = built(args, factory, folder)
        memory = knn_logits.Memory(model, store, threads=1, nprobe=args.nprobe)
        index = memory.retriever.index
        # Without an index the keys are searched.
        searched = ("keys",) if factory == "exact" else ("index.",)
        files = [one for one in store.manifest.files if one.name.startswith(searched)]
        entries = len(store)
        row = {
            "index": factory,
            "name": name,
            "bytes_an_entry": sum(one.bytes for one in files) / entries,
            "build_cpu_seconds": seconds,
            "recall_at_64": recall(index, queries, truth, 64),
            "recall_at_1024": recall(index, queries, truth, 1024),
            "times": {k: compare_times(index, exact, queries, k, args.rounds) for k in (64, 1024)},
        }
        took = in_own_process(store.folder)
        row |= {f"{name}_bytes_an_entry": value / entries for name, value in took.items()}
        row |= perplexities(model, tokenizer, memory.asked(), texts)
        yield row


def on_demand(args, model, tokenizer, texts, folder):
    """Yields the row of a datastore of the same documents that stores no keys."""
    number = knn_logits.Datastore(args.store).manifest.documents
    documents = itertools.islice(knn_logits.read_corpus([args.corpus]), number)
    store = knn_logits.build_datastore(
        model, tokenizer, documents, folder / "bare", store_keys=False, threads=1, overwrite=True
    )
    own = knn_logits.Datastore(args.store).manifest.settings
    memory = knn_logits.Memory(model, store, k=own.k, lmbda=own.lmbda, temperature=own.temperature)
    size = store.manifest.file("suffixes").bytes
    row = {"index": None, "name": ON_DEMAND}
    row |= {"bytes_an_entry": size / len(store), "plain_arrays": True}
    row |= perplexities(model, tokenizer, memory, texts)
    started = time.process_time()
    again = knn_logits.evaluate(model, tokenizer, memory, texts, samples=0, allow_overlap=True)
    seconds = time.process_time() - started
    row["cpu_milliseconds_a_token_again"] = 1e3 * seconds / again.total.tokens
    yield row


def plot(rows, path):
    """Draws perplexity against bytes, one point for each row."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        x, y = row["bytes_an_entry"], row["perplexity"]
        axes.plot(x, y, "o", color="#2a7f6f")
        x_off, y_off = LABELS.get(row["name"], (0, 7))
        axes.annotate(
            row["name"],
            (x, y),
            xytext=(x_off, y_off),
            textcoords="offset points",
            fontsize=8,
            ha="center",
        )
    axes.set_xscale("log", base=2)
    axes.margins(y=0.12)
    ticks = [8, 16, 32, 64, 128, 256, 512, 1024]
    axes.set_xticks(ticks, [str(one) for one in ticks])
    axes.set_xlabel("bytes an entry on disk")
    axes.set_ylabel("perplexity of held-out text")
    axes.spines[["top", "right"]].set_visible(False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "compression"}):
        figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("corpus")
    parser.add_argument("text")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--nprobe", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="+", help="measures these rows again, and keeps the others")
    parser.add_argument("--memory-again", action="store_true", help="only the memory of --only")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plot", action="store_true", help="only draws the recorded result again")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory:
        memory_of(args.store)
        return
    picture = RESULTS / "compression.svg"
    if args.plot:
        plot(json.loads((RESULTS / "compression.json").read_text())["result"]["rows"], picture)
        return
    model, tokenizer = load(args.model)
    store = knn_logits.Datastore(args.store)
    sizes = {"lists": choose_lists(len(store))}
    kinds = {name: factory.format(**sizes) for name, factory in KINDS.items()}
    texts = beginnings(args.text, tokenizer, args.texts, args.tokens)
    settings = {name: getattr(args, name) for name in vars(args) if name not in LEFT_OUT}
    rows = {}
    if args.only:
        kept = json.loads((RESULTS / "compression.json").read_text())["result"]["rows"]
        rows = {row["name"]: row for row in kept}
        kinds = {name: kind for name, kind in kinds.items() if name in args.only}
    with tempfile.TemporaryDirectory() as temporary:
        parts = [measure(args, kinds, model, tokenizer, texts, Path(temporary))]
        if args.memory_again:
            parts = [memory_again(args, kinds, rows, Path(temporary))]
        if not args.only or ON_DEMAND in args.only:
            parts.append(on_demand(args, model, tokenizer, texts, Path(temporary)))
        for row in itertools.chain.from_iterable(parts):
            rows[row["name"]] = row
            # What was measured is kept, also if a later row is stopped.
            record("compression", settings, {"entries": len(store), "rows": list(rows.values())})
    plot(rows.values(), picture)


if __name__ == "__main__":
    main()
