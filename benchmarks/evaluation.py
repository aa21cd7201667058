"""Measures tokens per second of an evaluation with kNN and without, and the time of `tune`.

Only the CPU time of the process is counted.

python benchmarks/evaluation.py MODEL CORPUS TEXT --entries 200000 --k 1024
"""

import argparse
import tempfile
import time
from itertools import islice

import torch
from common import Clock, alternate, first_documents, load, record, summary

import knn_logits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("text", help="held-out text, as for a corpus")
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=10_000, help="about how many to score")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--stride", type=int, help="the stride (default: half of the window)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--index", default="auto")
    parser.add_argument("--nprobe", type=int)
    parser.add_argument("--store", help="an existing datastore, in place of a new one")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--name", default="evaluation", help="the name of the results' file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model, args.dtype)
    documents = list(islice(held_out(args.text, tokenizer, args.tokens), 1000))
    window = knn_logits.WindowConfig(args.window, args.stride or args.window // 2)
    settings = {"window": window, "check": False}
    with tempfile.TemporaryDirectory() as folder:
        if args.store:
            store = knn_logits.Datastore(args.store)
        else:
            store = knn_logits.build_datastore(
                model,
                tokenizer,
                first_documents(args.corpus, tokenizer, args.entries),
                folder,
                index=knn_logits.IndexConfig(args.index),
            )
        searching = {"k": args.k, "nprobe": args.nprobe, "threads": args.threads}

        def seconds_of(datastore, **more):
            clock = Clock()
            result = knn_logits.evaluate(
                model,
                tokenizer,
                datastore,
                documents,
                samples=0,
                progress=clock,
                **settings,
                **more,
            )
            return clock.seconds, result

        def tuned():
            started = time.process_time()
            result = knn_logits.tune(model, tokenizer, store, documents, **settings, **searching)
            return time.process_time() - started, result

        # Only the pass itself is timed, since a user opens the index once, and here it is opened
        # each time.
        rounds = {"without": [], "with": [], "tune": []}
        results = {}

        def keep(name, timed):
            seconds, results[name] = timed
            rounds[name].append(seconds)

        def with_and_tune():
            keep("with", seconds_of(store, **searching))
            keep("tune", tuned())

        alternate(lambda: keep("without", seconds_of(None)), with_and_tune, args.rounds)
        total = results["with"].total
        # The first round of each is the warm-up of `alternate`.
        fair = {name: summary(seconds[1:]) for name, seconds in rounds.items()}
        result = {
            "entries": len(store),
            "index": store.manifest.index.model_dump(mode="json"),
            "tokens": total.tokens,
            "perplexity": vars(total.perplexity),
            "settings_tried": results["tune"].grid.settings,
            **{f"seconds_{name}": values for name, values in fair.items()},
            "tokens_per_second_without": total.tokens / fair["without"]["median"],
            "tokens_per_second_with": total.tokens / fair["with"]["median"],
            "ratio": fair["without"]["median"] / fair["with"]["median"],
            "ratio_of_fastest": fair["without"]["fastest"] / fair["with"]["fastest"],
            "tune_by_evaluation": fair["tune"]["median"] / fair["with"]["median"],
            "tune_by_evaluation_of_fastest": fair["tune"]["fastest"] / fair["with"]["fastest"],
        }
    record(args.name, vars(args), result)


def held_out(text, tokenizer, tokens):
    """Yields documents of about so many tokens together. Long documents are cut."""
    for document in knn_logits.read_corpus([text]):
        ids = tokenizer(document.text, verbose=False)["input_ids"]
        part = ids[: min(len(ids), tokens, 2500)]
        yield tokenizer.decode(part)
        tokens -= len(part)
        if tokens < 2:
            return


if __name__ == "__main__":
    main()
