"""Keys on demand beside stored keys: bytes, perplexity, time to build and to write.

python benchmarks/keys_on_demand.py MODEL CORPUS TEXT [--documents 30] [--texts 4] [--tokens 1024]

Two datastores of the first documents of CORPUS are built, one with its keys and one without. Each
is measured with the settings that its own build has chosen, and with settings that are chosen on
half of the texts and measured on the other half. Other ways to look for passages are measured with
the settings of the build. Seconds are of one core, so that other programs change them little.
"""

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path

import torch
from common import beginnings, load, record, summary

import knn_logits

PROMPT_TOKENS, NEW_TOKENS = 64, 48
# Settings of the first stage; the first are the defaults.
WAYS = [
    {},
    {"every": 16, "ends": 16},
    {"every": 4, "ends": 4},
    {"every": 32, "ends": 32},
    {"found": 2},
    {"found": 16},
    {"kept": 8},
    {"kept": 128},
    {"context": 0},
    {"context": 192},
    {"passage": 32, "context": 32},
]


def cpu(what):
    """What a call returns, and its seconds of one core."""
    started = time.process_time()
    found = what()
    return found, time.process_time() - started


def documents_of(corpus, number):
    return list(itertools.islice(knn_logits.read_corpus([corpus]), number))


def size_of(store):
    return sum(one.bytes for one in store.manifest.files)


def read_by(memory):
    """Tokens that the model has read for passages so far; 0 where the keys are stored."""
    keys = getattr(memory.retriever, "keys", None)
    return 0 if keys is None else keys.read


def scored(model, tokenizer, memory, texts, **settings):
    """Perplexities of texts, and how many tokens the model read for each token of them."""
    before = read_by(memory)
    found, seconds = cpu(
        lambda: knn_logits.evaluate(
            model, tokenizer, memory, texts, samples=0, allow_overlap=True, **settings
        )
    )
    perplexity = found.total.perplexity
    return {
        "tokens": found.total.tokens,
        "lm": perplexity.lm,
        "perplexity": perplexity.interpolated,
        "read_a_token": (read_by(memory) - before) / found.total.tokens,
        "cpu_milliseconds_a_token": 1e3 * seconds / found.total.tokens,
    }


def fitted(model, tokenizer, memory, texts):
    """The perplexity of half of the texts, with settings chosen on the other half."""
    found = knn_logits.tune(model, tokenizer, memory, texts, samples=0, allow_overlap=True)
    return {
        "perplexity": found.held_out.perplexity,
        "k": found.k,
        "lmbda": found.lmbda,
        "temperature": found.temperature,
    }


def other_way(store, way):
    """The datastore with other settings of its first stage, in memory."""
    again = knn_logits.Datastore(store.folder)
    own = store.manifest.on_demand
    again.manifest = store.manifest.model_copy(update={"on_demand": own.model_copy(update=way)})
    return again


class Clock:
    """A logits processor that notes when it is called, which is when a token is chosen."""

    def __init__(self, times):
        self.times = times

    def __call__(self, _, scores):
        self.times.append(time.process_time())
        return scores


def steps(model, tokenizer, memory, texts, **searched):
    """CPU milliseconds of the first token of each text, and of each token after it."""
    first, after, read = [], [], []
    for text in texts:
        ids = torch.tensor([tokenizer(text.text, verbose=False)["input_ids"][:PROMPT_TOKENS]])
        before = 0 if memory is None else read_by(memory)
        times = []
        clock = Clock(times)
        started = time.process_time()
        settings = {
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": NEW_TOKENS,
            "min_new_tokens": NEW_TOKENS,
            "do_sample": False,
        }
        if memory is None:
            model.generate(ids, **settings, logits_processor=[clock])
        else:
            with knn_logits.KNNLogitsProcessor(model, memory, record=False, **searched) as knn:
                model.generate(ids, **settings, logits_processor=[knn, clock])
            read.append((read_by(memory) - before) / NEW_TOKENS)
        first.append(1e3 * (times[0] - started))
        after.append(1e3 * (times[-1] - times[0]) / (NEW_TOKENS - 1))
    return {
        "first": summary(first),
        "after": summary(after),
        "read_a_token": sum(read) / len(read) if read else 0.0,
    }


def built(model, tokenizer, documents, folder, **settings):
    """A datastore and the CPU seconds of its build; one that an earlier run has left is taken."""
    noted = folder.with_suffix(".json")
    if not noted.exists():
        _, seconds = cpu(
            lambda: knn_logits.build_datastore(
                model, tokenizer, documents, folder, threads=1, overwrite=True, **settings
            )
        )
        noted.write_text(json.dumps({"cpu_seconds": seconds}))
    return knn_logits.Datastore(folder), json.loads(noted.read_text())["cpu_seconds"]


def measured(model, tokenizer, memory, texts):
    """Scoring and writing with a datastore as it comes by itself."""
    row = {"generation": {"cold": steps(model, tokenizer, memory, texts)}}
    row["generation"]["warm"] = steps(model, tokenizer, memory, texts)
    row["generation"]["without pointers"] = steps(model, tokenizer, memory, texts, retomaton=False)
    row["scoring"] = scored(model, tokenizer, memory, texts)
    row["scoring_again"] = scored(model, tokenizer, memory, texts)
    row["with_infini_gram"] = scored(model, tokenizer, memory, texts, infini_gram="auto")
    row["fitted"] = fitted(model, tokenizer, memory, texts)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("text")
    parser.add_argument("--documents", type=int, default=30)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--work", help="keeps the datastores for a later run")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    documents = documents_of(args.corpus, args.documents)
    texts = beginnings(args.text, tokenizer, args.texts, args.tokens)
    settings = {name: value for name, value in vars(args).items() if name != "work"}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(args.work or temporary)
        work.mkdir(exist_ok=True)
        result = {"stores": {}, "ways": []}
        for name, how in (("stored", {}), ("on-demand", {"store_keys": False})):
            store, seconds = built(model, tokenizer, documents, work / name, **how)
            own = store.manifest.settings
            row = {
                "entries": len(store),
                "bytes": size_of(store),
                "bytes_an_entry": size_of(store) / len(store),
                "cpu_seconds": seconds,
                "settings": {"k": own.k, "lmbda": own.lmbda, "temperature": own.temperature},
            }
            if how:
                row["cpu_seconds_without_settings"] = built(
                    model, tokenizer, documents, work / "bare", calibrate=False, **how
                )[1]
            memory = knn_logits.Memory(model, knn_logits.build_suffixes(work / name))
            result["stores"][name] = row | measured(model, tokenizer, memory, texts)
            print(name, result["stores"][name], flush=True)
        result["model_alone"] = steps(model, tokenizer, None, texts)
        full, bare = (result["stores"][name] for name in ("stored", "on-demand"))
        result["share_of_bytes"] = bare["bytes"] / full["bytes"]
        for which in ("scoring", "fitted"):
            ratio = bare[which]["perplexity"] / full[which]["perplexity"]
            result[f"{which}_perplexity_ratio"] = ratio
        record("keys_on_demand", settings, result)
        for way in WAYS:
            memory = knn_logits.Memory(model, other_way(store, way), check=False)
            row = {"way": way}
            found = [scored(model, tokenizer, memory, texts) for _ in range(2)]
            row["read_a_token"] = found[0]["read_a_token"]
            row["cpu_milliseconds_a_token"] = found[1]["cpu_milliseconds_a_token"]
            row["perplexity"] = found[0]["perplexity"]
            result["ways"].append(row)
            record("keys_on_demand", settings, result)


if __name__ == "__main__":
    main()
