"""Measures a GPU: search, generation, building and drafts, in one run of at most 20 minutes.

python benchmarks/gpu.py MODEL CORPUS HELD --device cuda

CORPUS makes the datastore, and prompts come from HELD. Search is measured over synthetic keys of
576 numbers, beside FAISS's exact search if `faiss-gpu` is installed, and beside the time in which
the GPU reads that many bytes. `--sizes 3000 --device cpu` tries the script without a GPU.
"""

import argparse
import statistics
import tempfile
import time
from functools import partial

import numpy as np
import torch
from common import add_model_options, load, record

import knn_logits
from knn_logits.engine.forward import key_states
from knn_logits.engine.location import find_key
from knn_logits.index.compact import CompactIndex

DIM = 576


def wait(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def seconds(function, device, rounds):
    """Returns the median seconds of a function, after two calls that are not timed."""
    spent = []
    for _ in range(rounds + 2):
        wait(device)
        started = time.perf_counter()
        function()
        wait(device)
        spent.append(time.perf_counter() - started)
    return statistics.median(spent[2:])


def in_turn(functions, device, rounds):
    """Returns the median seconds of functions that are called in turn, and ratios to the first."""
    spent = [[] for _ in functions]
    for number in range(rounds + 1):
        for place, function in enumerate(functions):
            wait(device)
            started = time.perf_counter()
            function()
            wait(device)
            if number:
                spent[place].append(time.perf_counter() - started)
    first = spent[0]
    ratios = [statistics.median(a / b for a, b in zip(first, one, strict=True)) for one in spent]
    return [statistics.median(one) for one in spent], ratios


def read_bandwidth(device):
    """Returns the bytes that the device reads in a second."""
    numbers = torch.zeros((4 << 30 if torch.device(device).type == "cuda" else 1 << 26) // 4)
    numbers = numbers.to(device)
    return numbers.nbytes / seconds(numbers.sum, device, 10)


def faiss_index(keys, device):
    """Returns a search of FAISS over float16 keys on the GPU; None without `faiss-gpu`."""
    import faiss

    if torch.device(device).type != "cuda" or not hasattr(faiss, "GpuIndexFlatL2"):
        return None
    import faiss.contrib.torch_utils

    config = faiss.GpuIndexFlatConfig()
    config.useFloat16 = True
    index = faiss.GpuIndexFlatL2(faiss.StandardGpuResources(), DIM, config)
    for part in keys.split(500_000):
        index.add(part.float().contiguous())
    return index


def search(sizes, batches, device, rounds, with_faiss):
    """Times searches for the k nearest of synthetic keys."""
    bandwidth, rows = read_bandwidth(device), []
    block = np.random.default_rng(0).standard_normal((min(500_000, max(sizes)), DIM))
    block = block.astype(np.float16)
    for size in sizes:

        def parts(size=size):
            for first in range(0, size, len(block)):
                yield block[: min(len(block), size - first)] + np.float16(first / size)

        index = CompactIndex(parts, size, DIM, "l2", device)
        other = faiss_index(index._keys, device) if with_faiss and size <= 3_000_000 else None
        for k in (64, 1024):
            for batch in batches:
                queries = torch.randn(batch, DIM, device=device)
                spent = seconds(partial(index.search, queries, k), device, rounds)
                row = {"entries": size, "k": k, "batch": batch, "ms": round(1e3 * spent, 3)}
                row["of_bandwidth"] = round(index._keys.nbytes / bandwidth / spent, 3)
                if other is not None:
                    theirs = seconds(partial(other.search, queries, k), device, rounds)
                    row["faiss_ms"] = round(1e3 * theirs, 3)
                    found = index.search(queries, k)[1].sort().values
                    same = torch.isin(found[0], other.search(queries, k)[1][0]).float().mean()
                    row["same_neighbors"] = round(float(same), 4)
                rows.append(row)
                print(row, flush=True)
        del index, other
    return {"read_bandwidth_gb_s": round(bandwidth / 1e9), "rows": rows}


def build(model, tokenizer, documents, folder, device):
    """Times a build, with its index and its gate, and the bare passes over the same text."""
    location = find_key(model, "ffn_input")
    ids = [tokenizer(one.text, verbose=False)["input_ids"] for one in documents]
    size = min(1024, model.config.max_position_embeddings)
    windows = torch.tensor([token for text in ids for token in text])
    windows = windows[: len(windows) // size * size].view(-1, 1, size).to(device)

    def passes():
        with torch.inference_mode():
            for one in windows:
                key_states(model, location, {"input_ids": one})

    bare = seconds(passes, device, 2)
    started = time.perf_counter()
    store = knn_logits.build_datastore(model, tokenizer, documents, folder, calibrate=False)
    keys = time.perf_counter() - started
    started = time.perf_counter()
    store = knn_logits.build_datastore(model, tokenizer, documents, folder, overwrite=True)
    whole = time.perf_counter() - started
    return store, {
        "entries": len(store),
        "entries_per_second": round(len(store) / keys),
        "bare_entries_per_second": round(windows.numel() / bare),
        "seconds_with_gate": round(whole, 1),
    }


def generation(model, tokenizer, store, held, device, batches, new, rounds):
    """Times `generate()` alone and with kNN, in turn; no drafts."""
    text = "\n".join(one.text for one in held)
    ids = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][0]
    rows = []
    with knn_logits.KNNLogitsProcessor(model, store) as knn:
        for batch in batches:
            prompts = ids[: batch * 64].view(batch, -1).to(device)
            settings = {
                "attention_mask": torch.ones_like(prompts),
                "max_new_tokens": new,
                "do_sample": False,
                "eos_token_id": None,
                "pad_token_id": 0,
            }
            (alone, with_knn), ratios = in_turn(
                [
                    partial(model.generate, prompts, **settings),
                    partial(model.generate, prompts, logits_processor=[knn], **settings),
                ],
                device,
                rounds,
            )
            row = {
                "batch": batch,
                "ms_per_step_alone": round(1e3 * alone / new, 2),
                "ms_per_step_with_knn": round(1e3 * with_knn / new, 2),
                "ratio": round(ratios[1], 3),
            }
            rows.append(row)
            print(row, flush=True)
    return rows


def drafts(model, tokenizer, store, documents, device, new, rounds):
    """Times `knn.generate` with and without drafts, on prompts from the datastore's documents."""
    rows = []
    with knn_logits.KNNLogitsProcessor(model, store) as knn:
        for document in documents[:4]:
            ids = tokenizer(document.text, return_tensors="pt", verbose=False)["input_ids"]
            prompt = ids[:, 200:264].to(device)
            settings = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
            settings["attention_mask"] = torch.ones_like(prompt)
            (plain, drafted), ratios = in_turn(
                [
                    partial(knn.generate, prompt, draft=False, **settings),
                    partial(knn.generate, prompt, **settings),
                ],
                device,
                rounds,
            )
            row = {"document": document.id, "passes": knn.passes, "ratio": round(ratios[1], 2)}
            row |= {"seconds_plain": round(plain, 3), "seconds_drafted": round(drafted, 3)}
            rows.append(row)
            print(row, flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_options(parser)
    parser.add_argument("corpus")
    parser.add_argument("held")
    parser.add_argument("--sizes", nargs="+", type=int, default=[300_000, 3_000_000, 30_000_000])
    parser.add_argument("--search-batches", nargs="+", type=int, default=[1, 8, 64, 256])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-faiss", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(4)
    result = {"search": search(args.sizes, args.search_batches, args.device, 7, not args.no_faiss)}
    model, tokenizer = load(args.model, args.dtype, args.device)
    documents, held = (list(knn_logits.read_corpus([one])) for one in (args.corpus, args.held))
    with tempfile.TemporaryDirectory() as folder:
        store, result["build"] = build(model, tokenizer, documents, folder + "/store", args.device)
        print(result["build"], flush=True)
        result["generation"] = generation(
            model, tokenizer, store, held, args.device, args.batches, args.new_tokens, args.rounds
        )
        result["drafts"] = drafts(
            model, tokenizer, store, documents, args.device, args.new_tokens, 3
        )
    if torch.device(args.device).type == "cuda":
        result["gpu"] = torch.cuda.get_device_name()
    record("gpu", vars(args), result)


if __name__ == "__main__":
    main()
