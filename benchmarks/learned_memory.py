"""A learned memory beside its datastore: perplexity, bytes, tokens a second.

python benchmarks/learned_memory.py MODEL STORE TEXT [--rows 1 3 10]

Every memory is asked with the settings that it was given when it was made: the datastore's were
chosen on a sample of its text, and those of a learned memory on the part of that text that was held
out. Nothing is chosen on TEXT. With --from-rows one memory learns the datastore's distributions as
well.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from common import load, record
from searches_saved import documents_of

import knn_logits

PROMPT_TOKENS, NEW_TOKENS = 32, 64


def size_of(store):
    return sum(one.bytes for one in store.manifest.files)


def scored(model, tokenizer, memory, documents):
    found = knn_logits.evaluate(
        model,
        tokenizer,
        memory,
        documents,
        window=knn_logits.WindowConfig(512, 256),
        allow_overlap=True,
        samples=0,
    )
    return found.total.perplexity, found.tokens_per_second


def writers(model, tokenizer, memories, text):
    """What writes with each memory, with its settings for writing; None stands for no memory."""
    ids = torch.tensor([tokenizer(text, verbose=False)["input_ids"][:PROMPT_TOKENS]])

    def write(processors):
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            logits_processor=processors,
        )

    def with_memory(memory):
        with knn_logits.KNNLogitsProcessor(model, memory) as knn:
            write([knn])

    return {
        name: (lambda: write([])) if memory is None else (lambda memory=memory: with_memory(memory))
        for name, memory in memories.items()
    }


def in_turn(calls, rounds):
    """Median seconds of each of several things, done in turn."""
    seconds = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(one) for name, one in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("text")
    parser.add_argument("--rows", type=float, nargs="+", default=[1.0, 3.0, 10.0])
    parser.add_argument(
        "--from-rows", type=float, help="rows of one that learns from the datastore"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", help="a folder where the memories stay, and are taken from")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model)
    store = knn_logits.Datastore(args.store)
    documents = documents_of(args.text, tokenizer, args.documents, args.tokens)
    settings = {name: value for name, value in vars(args).items() if name != "keep"}
    wanted = {f"{rows:g} rows a token": (rows, None) for rows in args.rows}
    if args.from_rows:
        wanted[f"{args.from_rows:g} rows a token, from the datastore"] = (args.from_rows, store)
    result = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(args.keep or place)
        memories = {"model alone": None, "datastore": store}
        for number, (name, (rows, teacher)) in enumerate(wanted.items()):
            out = folder / f"learned-{number}-{rows:g}"
            result[name] = {}
            if not (out / "datastore.json").exists():
                started = time.perf_counter()
                knn_logits.distill(
                    model, tokenizer, store, out, rows=rows, teacher=teacher, epochs=args.epochs
                )
                result[name] = {"seconds_of_learning": time.perf_counter() - started}
            memories[name] = knn_logits.Datastore(out)
        opened = {
            name: memory and knn_logits.Memory(model, memory) for name, memory in memories.items()
        }
        for name, memory in opened.items():
            if memory is None:
                continue
            perplexity, speed = scored(model, tokenizer, memory, documents)
            manifest = memories[name].manifest
            result.setdefault("model alone", {"perplexity": perplexity.lm})
            result.setdefault(name, {})
            result[name] |= {
                "perplexity": perplexity.interpolated,
                "entries": manifest.entries,
                "bytes": size_of(memories[name]),
                "settings": manifest.settings.model_dump(),
                "tokens_scored_a_second": speed,
            }
            if manifest.learned is not None:
                result[name]["learned"] = manifest.learned.model_dump()
        for name, seconds in in_turn(
            writers(model, tokenizer, opened, documents[0]), args.rounds
        ).items():
            result[name]["tokens_written_a_second"] = NEW_TOKENS / seconds
    record("learned_memory", settings, result)


if __name__ == "__main__":
    main()
