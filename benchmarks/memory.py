"""Measures the memory of a process: a model alone, with a datastore, and answering a question.

python benchmarks/memory.py MODEL STORE [--dtype float32] [--tokens 64]

Each way runs in a process of its own, one thread, and reports its resident memory after importing
PyTorch and transformers, after loading the model, after writing, and at its peak, which may be that
of loading.
"""

import argparse
import json
import resource
import subprocess
import sys

import psutil

PROMPT = "This document describes"
QUESTION = "Who wrote this document?"
WAYS = ("alone", "knn", "ask")


def megabytes():
    return psutil.Process().memory_info().rss / 1e6


def measure(way, name, store, dtype, tokens):
    """Runs one way in this process, and prints its figures."""
    import torch
    from common import load

    torch.set_num_threads(1)
    figures = {"imported": megabytes()}
    model, tokenizer = load(name, dtype)
    figures["loaded"] = megabytes()
    import knn_logits

    inputs = tokenizer(PROMPT, return_tensors="pt")
    settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    if way == "alone":
        model.generate(**inputs, **settings, pad_token_id=0)
    elif way == "knn":
        # A share of its own makes each token search, also where trust would be silent.
        with knn_logits.KNNLogitsProcessor(model, store, lmbda=0.25) as knn:
            knn.generate(**inputs, **settings, pad_token_id=0)
            figures["after"] = megabytes()
    else:
        memory = knn_logits.Memory(model, knn_logits.Datastore(store))
        knn_logits.Asking(model, tokenizer, memory).answer(QUESTION)
    figures.setdefault("after", megabytes())
    # Linux counts in kilobytes of 1,024 bytes.
    figures["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(json.dumps(figures))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        measure(options.way, options.model, options.store, options.dtype, options.tokens)
        return
    from common import record

    import knn_logits

    manifest = knn_logits.Datastore(options.store).manifest
    result = {"entries": manifest.entries, "bytes": sum(file.bytes for file in manifest.files)}
    for way in WAYS:
        command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        figures = json.loads(done.stdout.splitlines()[-1])
        result[way] = {name: round(value, 1) for name, value in figures.items()}
        ratios = (result[way][name] / result["alone"][name] for name in ("after", "peak"))
        print(f"{way}: {' and '.join(f'{ratio:.2f}' for ratio in ratios)} times the model alone")
    record("memory", vars(options), result)


if __name__ == "__main__":
    main()
