"""Measures sentences per CPU second with kNN and without, and with knn-transformers.

python benchmarks/translation.py MODEL STORE PAIRS [--theirs DIR]

DIR is a checkout of github.com/neulab/knn-transformers. It reads this project's datastore, which is
written in its format with the same keys, values and FAISS index. All ways take turns in one thread,
with the same batches. Only the CPU time of the process is counted.
"""

import argparse
import importlib
import statistics
import sys
import tempfile
import time
from itertools import islice

import numpy as np
import torch
from common import record
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import knn_logits
from knn_logits.search.retriever import Retriever


def batches(tokenizer, sources, size):
    """Yields the sources in batches as `translate` does, with the longest first."""
    order = sorted(sources, key=lambda source: -len(source))
    for first in range(0, len(order), size):
        yield tokenizer(order[first : first + size], return_tensors="pt", padding=True)


def decode(model, inputs, beams, processors=()):
    """Returns all output tokens, and the CPU seconds that they took."""
    rows, started = [], time.process_time()
    for batch in inputs:
        output = model.generate(
            **batch,
            num_beams=beams,
            do_sample=False,
            max_new_tokens=2 * batch["input_ids"].shape[1] + 50,
            logits_processor=list(processors),
        )
        rows += output.tolist()
    return rows, time.process_time() - started


def theirs(folder, checkout, model, store, args):
    """Writes the datastore in their format, and returns their wrapper for it."""
    import faiss

    sys.path.insert(0, checkout)
    knnlm = importlib.import_module("knnlm")
    entries, dim, kind = len(store), store.manifest.dim, model.config.model_type
    index = Retriever(store, knn_logits.KNNConfig(nprobe=args.nprobe)).index
    start = knnlm.get_dstore_path(folder, kind, entries, dim)
    store.keys(np.arange(entries)).astype(np.float16).tofile(f"{start}_keys.npy")
    store.values.numpy().astype(np.int32).tofile(f"{start}_vals.npy")
    faiss.write_index(index.raw, knnlm.get_index_path(folder, kind, entries, dim))
    faiss.omp_set_num_threads(1)
    return knnlm.KNNWrapper(
        dstore_size=entries,
        dstore_dir=folder,
        dimension=dim,
        knn_sim_func=knnlm.DIST.l2,
        knn_keytype=knnlm.KEY_TYPE.last_ffn_input,
        k=args.k,
        lmbda=args.lmbda,
        knn_temp=args.temperature,
        probe=index.nprobe,
        knn_gpu=False,
        move_dstore_to_mem=True,
    )


def differences(ours, other):
    """Returns the rows whose tokens differ, with the place of the first difference."""
    found = []
    for number, (mine, yours) in enumerate(zip(ours, other, strict=True)):
        length = max(len(mine), len(yours))
        one = mine + [-1] * (length - len(mine))
        two = yours + [-1] * (length - len(yours))
        places = [place for place in range(length) if one[place] != two[place]]
        if places:
            place = places[0]
            found.append({"row": number, "place": place, "ours": one[place], "theirs": two[place]})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("text", help="pairs, in the form of a corpus")
    parser.add_argument("--theirs", help="a checkout of knn-transformers; greedy search only")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--num-beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--k", type=int, default=32)
    parser.add_argument("--lmbda", type=float, default=0.5)
    parser.add_argument("--temperature", type=float, default=30.0)
    parser.add_argument("--nprobe", type=int)
    parser.add_argument("--name", default="translation", help="the name of the results' file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model).eval()
    store = knn_logits.Datastore.from_pretrained(args.store)
    documents = islice(knn_logits.read_corpus([args.text], pairs=True), args.pairs)
    sources = [document.source for document in documents]
    inputs = list(batches(tokenizer, sources, args.batch_size))
    settings = {name: getattr(args, name) for name in ("k", "lmbda", "temperature", "nprobe")}

    def with_knn(beams):
        with knn_logits.KNNLogitsProcessor(
            model, store, threads=1, record=False, check=False, **settings
        ) as knn:
            return decode(model, inputs, beams, [knn])

    result = {}
    with tempfile.TemporaryDirectory() as folder:
        wrapper = theirs(folder, args.theirs, model, store, args) if args.theirs else None

        def with_theirs(beams):
            wrapper.break_into(model)
            try:
                return decode(model, inputs, beams)
            finally:
                wrapper.break_out()

        for beams in args.num_beams:
            ways = {"model": lambda beams=beams: decode(model, inputs, beams)}
            ways["kNN"] = lambda beams=beams: with_knn(beams)
            if wrapper is not None and beams == 1:
                ways["knn-transformers"] = lambda beams=beams: with_theirs(beams)
            seconds = {name: [] for name in ways}
            rows = {}
            for turn in range(args.rounds + 1):
                for name, way in ways.items():
                    rows[name], taken = way()
                    if turn:
                        seconds[name].append(taken)
            middle = {name: statistics.median(taken) for name, taken in seconds.items()}
            result[f"beams {beams}"] = found = {
                "sentences_per_second": {
                    name: round(len(sources) / taken, 2) for name, taken in middle.items()
                },
                "of_the_model": {
                    name: round(middle["model"] / taken, 3) for name, taken in middle.items()
                },
                "of_the_model_fastest": {
                    name: round(min(seconds["model"]) / min(taken), 3)
                    for name, taken in seconds.items()
                },
            }
            if "knn-transformers" in rows:
                other = differences(rows["kNN"], rows["knn-transformers"])
                found["sentences"] = len(sources)
                found["sentences_that_differ"] = len(other)
                found["first_differences"] = other[:5]
    record(args.name, vars(args), result)


if __name__ == "__main__":
    main()
