"""Measures the ∞-gram beside kNN: perplexity, time and size, and its counts against plain ones.

python benchmarks/infini_gram.py MODEL --set NAME STORE TEXT [--set NAME STORE TEXT]

The texts are cut into documents of at most `--tokens` tokens. k, λ and temperature are chosen on
half of them, and every perplexity is of the other half. The ∞-gram has its default shares. The
datastores are copied first. Each result is added to those of earlier runs with the same settings.
"""

import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import alternate, load, record, summary
from searches_saved import asks_about_sets, documents_of, others

import knn_logits
from knn_logits.search.occurrences import Prefixes
from knn_logits.search.suffix_index import SuffixIndex

CONTEXTS = 10_000
PROMPT_TOKENS, NEW_TOKENS = 32, 48


def counted(tokens, inside, places_of, text):
    """Counts the occurrences of the longest suffix of a text by comparing the whole corpus.

    Returns:
        The number of tokens of the suffix, and the tokens that follow its occurrences, sorted.
    """
    places = places_of.get(text[-1], np.empty(0, np.int64))
    # A place counts if a token follows in its document.
    length, found = 0, np.empty(0, np.int64)
    places = places[inside[np.minimum(places + 1, len(tokens) - 1)] > 0]
    places = places[places + 1 < len(tokens)]
    while len(places):
        length, found = length + 1, places
        if length == len(text):
            break
        places = places[inside[places] >= length]
        places = places[tokens[places - length] == text[-1 - length]]
    return length, np.sort(tokens[found + 1])


def equality(store, tokenizer, documents, seed):
    """Compares 10,000 contexts with a plain count, and counts those that differ."""
    tokens = np.array(store.tokens)
    first = store.documents.first
    lengths = np.diff(np.append(first, len(tokens)))
    inside = np.arange(len(tokens)) - np.repeat(first, lengths)
    order = np.argsort(tokens, kind="stable")
    starts = np.flatnonzero(np.diff(tokens[order], prepend=-1))
    places_of = dict(zip(tokens[order][starts].tolist(), np.split(order, starts[1:]), strict=True))
    random = np.random.default_rng(seed)
    texts = [tokenizer(one, verbose=False)["input_ids"] for one in documents]
    chosen = []
    for _ in range(CONTEXTS):
        text = texts[random.integers(len(texts))]
        end = int(random.integers(1, len(text)))
        chosen.append(text[max(0, end - 64) : end])
    ends = np.cumsum([len(one) for one in chosen])
    prefixes = Prefixes(np.concatenate(chosen), ends - [len(one) for one in chosen], ends)
    index = SuffixIndex(store)
    started = time.perf_counter()
    low, high, matched = index.ranges(prefixes)
    seconds = time.perf_counter() - started
    wrong = 0
    for row, text in enumerate(chosen):
        length, following = counted(tokens, inside, places_of, text)
        found = np.sort(tokens[store.suffixes[low[row] : high[row]]])
        wrong += length != matched[row] or not np.array_equal(found, following)
    return {
        "contexts": CONTEXTS,
        "different": wrong,
        "microseconds_a_context_in_a_batch": 1e6 * seconds / CONTEXTS,
        "mean_length": float(matched.mean()),
    }


def steps(model, tokenizer, memory, text, rounds):
    """Times a step of generate() with kNN alone, and with the ∞-gram too, in milliseconds."""
    ids = torch.tensor([tokenizer(text, verbose=False)["input_ids"][:PROMPT_TOKENS]])

    def write(share):
        with knn_logits.KNNLogitsProcessor(model, memory, infini_gram=share) as knn:
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                do_sample=False,
                pad_token_id=0,
                logits_processor=[knn],
            )

    seconds = alternate(lambda: write(None), lambda: write("auto"), rounds)
    return {
        name: {key: 1e3 * value / NEW_TOKENS if key != "rounds" else value
               for key, value in summary(one).items()}
        for name, one in zip(("knn", "knn_and_infini_gram"), seconds, strict=True)
    }  # fmt: skip


def measure(model, tokenizer, folder, documents, args):
    """Measures all figures of one text."""
    window = knn_logits.WindowConfig(args.window, args.stride)
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copytree(folder, Path(place) / "store")
        knn_logits.Datastore(copy)
        started = time.perf_counter()
        store = knn_logits.build_suffixes(copy)
        seconds = time.perf_counter() - started
        common = {"window": window, "check": False, "allow_overlap": True}
        tuned = knn_logits.tune(model, tokenizer, store, documents, **common)
        names = ("k", "temperature", "lmbda", "suffix_weight")
        chosen = {name: getattr(tuned.chosen, name) for name in names}
        held_out = [documents[number] for number in tuned.held_out_documents]

        def measured(**settings):
            settings = {**chosen, **settings, **common, "samples": 0}
            found = knn_logits.evaluate(model, tokenizer, store, held_out, **settings)
            return found.total.perplexity.interpolated

        memory = knn_logits.Memory(model, store, check=False, **chosen)
        return {
            "tokens_of_the_corpus": store.manifest.tokens,
            "index_bytes_a_token": store.manifest.file("suffixes").bytes / store.manifest.tokens,
            "index_seconds": seconds,
            "tokens_held_out": tuned.held_out.tokens,
            "knn": chosen,
            "perplexity": {
                "model": tuned.held_out.lm,
                "model_and_infini_gram": measured(lmbda=0.0, infini_gram="auto"),
                "model_and_knn": measured(),
                "all_three": measured(infini_gram="auto"),
            },
            "plain_count": equality(store, tokenizer, documents, args.seed),
            "milliseconds_a_step": steps(model, tokenizer, memory, held_out[0], args.rounds),
        }


def main():
    parser = asks_about_sets(__doc__.splitlines()[0], 48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model)
    settings = {key: value for key, value in vars(args).items() if key != "sets"}
    for name, store, text in args.sets:
        documents = documents_of(text, tokenizer, args.documents, args.tokens)
        found = measure(model, tokenizer, store, documents, args)
        results = others(settings, "infini_gram") | {name: found}
        record("infini_gram", settings, results)


if __name__ == "__main__":
    main()
