"""Compares RetoMaton's perplexity with the share of searches that it saves.

python benchmarks/searches_saved.py MODEL --set NAME STORE TEXT [--set NAME STORE TEXT]

The texts are cut into documents of at most `--tokens` tokens. `tune` chooses k, temperature and λ
on half of them, and every number is of the other half. RetoMaton is measured without clusters, and
with them if the datastore has any.
"""

import argparse
import json
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import RESULTS, load, record

import knn_logits

LEAST = (1, 4, 8, 64, 512, 10**9)
# How many times as much a pointer counts: by the paper, and by default.
PAPERS, OURS = ("", 1.0), (", pointers count 20 times", 20.0)
TITLE = re.compile(r"^ = [^=].* = $", re.MULTILINE)


def documents_of(text, tokenizer, documents, tokens):
    """Returns the first tokens of the first documents of a text. WikiText is split at titles."""
    found = []
    for document in knn_logits.read_corpus([text]):
        starts = [match.start() for match in TITLE.finditer(document.text)] or [0]
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            ids = tokenizer(document.text[start:end], verbose=False)["input_ids"]
            if len(ids) > tokens // 2:
                found.append(tokenizer.decode(ids[:tokens]))
            if len(found) == documents:
                return found
    return found


def without_clusters(store, folder):
    """Opens a copy of a datastore without its clusters. The copy shares the other files."""
    copy = Path(folder) / "without_clusters"
    shutil.copytree(store, copy, copy_function=os.link)
    for file in [*copy.glob("clusters*"), copy / "datastore.json"]:
        file.unlink()
    manifest = knn_logits.Datastore(store).manifest
    kept = [one for one in manifest.files if not one.name.startswith("clusters")]
    manifest.model_copy(update={"files": tuple(kept)}).write(copy)
    return knn_logits.Datastore(copy)


def measure(model, tokenizer, folder, bare, documents, window, keep):
    """Measures all figures of one text.

    Args:
        model: The model.
        tokenizer: The tokenizer of the model.
        folder: The folder of the datastore.
        bare: The datastore without its clusters.
        documents: The documents of the text.
        window: The windows.
        keep: A function that gets the result so far after each figure.
    """
    store = knn_logits.Datastore(folder)
    common = {"window": window, "check": False}
    started = time.perf_counter()
    tuned = knn_logits.tune(model, tokenizer, store, documents, **common)
    chosen = {name: getattr(tuned, name) for name in ("k", "temperature", "lmbda")}
    held_out = [documents[number] for number in tuned.held_out_documents]
    result = {
        "entries": len(store),
        "clusters": None if store.clusters is None else int(np.max(store.clusters)) + 1,
        "documents": len(documents),
        "documents_held_out": len(held_out),
        "tokens_held_out": tuned.held_out.tokens,
        **chosen,
        "perplexity_lm": tuned.held_out.lm,
        "points": [],
    }

    def add(method, setting, where, **more):
        found = knn_logits.evaluate(
            model, tokenizer, where, held_out, samples=0, **chosen, **more, **common
        )
        result["points"].append(
            {
                "method": method,
                "setting": setting,
                "saved": found.searches_saved / found.total.tokens,
                "perplexity": found.total.perplexity.interpolated,
                "tokens_per_second": found.tokens_per_second,
            }
        )
        result["seconds"] = time.perf_counter() - started
        keep(result)

    add("kNN-LM", None, store)
    kinds = [("RetoMaton", bare)]
    if store.clusters is not None:
        kinds.append(("RetoMaton with clusters", store))
    for least in LEAST:
        for method, where in kinds:
            for name, weight in PAPERS, OURS:
                how = {"retomaton": True, "min_knns": least, "pointer_weight": weight}
                add(f"{method}{name}", least, where, **how)


def plot(results, path):
    """Draws one panel for each text."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(results), 3.8), dpi=100, layout="constrained")
    for axes, (name, found) in zip(
        np.atleast_1d(figure.subplots(1, len(results))), results.items(), strict=True
    ):
        methods = dict.fromkeys(one["method"] for one in found["points"])
        for method in methods:
            points = sorted(
                (100 * one["saved"], one["perplexity"])
                for one in found["points"]
                if one["method"] == method
            )
            axes.plot(*zip(*points, strict=True), "o-", markersize=3, linewidth=1, label=method)
        axes.set_title(name)
        axes.set_xlabel("searches saved, %")
        axes.set_ylabel("perplexity")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:.0f}")
        axes.yaxis.set_minor_formatter("{x:.0f}")
        axes.tick_params(which="both", labelsize=7)
        axes.legend(fontsize=6, frameon=False)
    figure.savefig(path)


def others(settings, name="searches_saved"):
    """Returns the results of earlier runs with the same settings, by the names of their texts."""
    path = RESULTS / f"{name}.json"
    content = json.loads(path.read_text()) if path.exists() else {"settings": None}
    same = content["settings"] == {**settings, "model": Path(settings["model"]).name}
    return content["result"] if same else {}


def asks_about_sets(description, documents):
    """Makes the parser of a benchmark that measures sets of a datastore and a text."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model")
    parser.add_argument("--set", nargs=3, action="append", dest="sets", required=True)
    parser.add_argument("--documents", type=int, default=documents)
    parser.add_argument("--tokens", type=int, default=1000, help="the most tokens of a document")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--stride", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    return parser


def main():
    args = asks_about_sets(__doc__.splitlines()[0], 24).parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model)
    window = knn_logits.WindowConfig(args.window, args.stride)
    for name, store, text in args.sets:
        documents = documents_of(text, tokenizer, args.documents, args.tokens)
        settings = {key: value for key, value in vars(args).items() if key != "sets"}

        def keep(found, name=name, settings=settings):
            results = others(settings) | {name: found}
            record("searches_saved", settings, results)
            plot(results, RESULTS / "searches_saved.png")

        with tempfile.TemporaryDirectory(dir=Path(store).resolve().parent) as work:
            bare = without_clusters(store, work)
            measure(model, tokenizer, store, bare, documents, window, keep)


if __name__ == "__main__":
    main()
