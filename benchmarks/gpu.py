"""Measures the searches that a GPU can make: exact, over compact keys, and FAISS, with one command.

python benchmarks/gpu.py MODEL STORE TEXT --device cuda

The queries are the model's states in TEXT, which the datastore should not hold. With `--device cpu`
the same table shows how much of what the exact index finds the compact forms find.
"""

import argparse
import time

import torch
from common import load, record, summary

import knn_logits
from knn_logits.engine.forward import key_states
from knn_logits.engine.location import find_key
from knn_logits.index.compact import CompactIndex
from knn_logits.index.exact import ExactIndex
from knn_logits.index.opening import whole_index


def states(model, tokenizer, store, text, number):
    """Returns the states of the first tokens of a text, float32 [number, dim]."""
    documents, ids = iter(knn_logits.read_corpus([text])), []
    while len(ids) < number:
        ids += tokenizer(next(documents).text, verbose=False)["input_ids"]
    location = find_key(model, store.manifest.key.name)
    windows = torch.tensor(ids[:number]).split(store.manifest.windows.window)
    with torch.inference_mode():
        found = [key_states(model, location, {"input_ids": one[None]})[0] for one in windows]
    return torch.cat(found).float()


def forms(store, device):
    """Yields the name of each form of the index, its index, and its bytes."""
    size, dim, metric = len(store), store.manifest.dim, store.manifest.metric

    def batches():
        return store.key_batches(65_536)

    exact = ExactIndex.from_batches(batches(), size, dim, metric, device)
    yield "exact, float32", exact, exact.bytes
    whole = CompactIndex(batches, size, dim, metric, device, dtype=torch.float16)
    yield "exact, as stored in float16", whole, whole.bytes
    del whole
    wide = CompactIndex(batches, size, dim, metric, device, dtype=torch.float32)
    yield "exact, kept in float32", wide, wide.bytes
    del wide
    few = CompactIndex(batches, size, dim, metric, device, keys=store.keys)
    yield "one byte, and a second look", few, few.bytes
    del few
    held = next((one.bytes for one in store.manifest.files if one.name.startswith("index")), None)
    if store.manifest.index.factory != "exact":
        index, name = whole_index(store, threads=1), store.manifest.index.factory
        yield f"FAISS on the processor, {name}", index, held
        if torch.device(device).type == "cuda":
            from knn_logits.index.faiss_backend import to_gpu

            moved = to_gpu(index, torch.device(device))
            if moved is not index:
                yield f"FAISS on the GPU, {name}", moved, held


def timed(index, queries, k, rounds):
    """Returns the seconds of some searches. A GPU is waited for."""
    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        index.search(queries, k)
        if queries.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("text")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    store = knn_logits.Datastore(args.store)
    queries = states(model, tokenizer, store, args.text, args.queries).to(args.device)
    rows, expected = [], None
    for name, index, size in forms(store, args.device):
        distances, ids = (one.cpu() for one in index.search(queries, args.k))
        if expected is None:
            expected = distances, [set(one) for one in ids.tolist()]
        found = [len(set(one) & true) for one, true in zip(ids.tolist(), expected[1], strict=True)]
        row = {
            "form": name,
            "mb": size and round(size / 1e6, 1),
            "recall": round(sum(found) / (len(found) * min(args.k, len(store))), 5),
        }
        if distances.shape == expected[0].shape:
            gap = (distances.sort().values - expected[0].sort().values).abs().nan_to_num()
            largest = float(gap.max() / expected[0].abs().mean())
            row["largest_difference_of_a_distance"] = float(f"{largest:.1e}")
        for batch in args.batches:
            seconds = timed(index, queries[:batch], args.k, args.rounds)
            row[f"ms_batch_{batch}"] = round(1e3 * summary(seconds)["median"], 3)
        rows.append(row)
        print(row, flush=True)
    record("gpu", vars(args), {"entries": len(store), "dim": store.manifest.dim, "rows": rows})


if __name__ == "__main__":
    main()
