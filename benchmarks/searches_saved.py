"""Perplexity against the share of searches saved, and a λ for each token against one for all.

python benchmarks/searches_saved.py MODEL --set NAME STORE TEXT [--set NAME STORE TEXT]

The texts are cut into documents of so many tokens. k, temperature, λ and the gates are chosen on
half of them by `tune`; every number is of the other half. A datastore with clusters is followed
with them and, with its clusters left out, without.
"""

import argparse
import re
import time

import numpy as np
import torch
from common import RESULTS, load, record

import knn_logits
from knn_logits import ConfidenceSkip, LearnedSkip, skip_features

SHARES = (0.2, 0.4, 0.6, 0.8, 0.9)
LEAST = (1, 8, 64, 512, 10**9)
TITLE = re.compile(r"^ = [^=].* = $", re.MULTILINE)


class Recorder:
    """A gate that searches nowhere, and notes what the rules that skip would read."""

    def __init__(self):
        self.features = []

    def searches(self, log_p_lm):
        self.features.append(skip_features(log_p_lm))
        return torch.zeros(len(log_p_lm), dtype=torch.bool)

    def lmbda(self, neighbors, metric, log_p_lm):  # noqa: ARG002
        return torch.zeros(neighbors.rows)


def documents_of(text, tokenizer, documents, tokens):
    """The first documents of a text, the first tokens of each; WikiText is cut at its titles."""
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


def without_clusters(store):
    store = knn_logits.Datastore(store)
    kept = [one for one in store.manifest.files if not one.name.startswith("clusters")]
    store.manifest = store.manifest.model_copy(update={"files": tuple(kept)})
    return store


def measure(model, tokenizer, folder, documents, window):
    """All figures of one text."""
    store = knn_logits.Datastore(folder)
    common = {"window": window, "check": False}
    started = time.perf_counter()
    gates = {}
    for kind, more in (("distance", {}), ("learned", {"skip": 0.0})):
        gates[kind] = knn_logits.tune(
            model, tokenizer, store, documents, gate=kind, **more, **common
        )
        print(kind, gates[kind].gate.to_dict(), flush=True)
    tuned = gates["learned"]
    chosen = {"k": tuned.k, "temperature": tuned.temperature}
    held_out = [documents[number] for number in tuned.held_out_documents]
    fitting = [one for one in documents if one not in held_out]
    points = []

    def add(method, setting, where, lmbda, **more):
        result = knn_logits.evaluate(
            model, tokenizer, where, held_out, lmbda=lmbda, samples=0, **chosen, **more, **common
        )
        points.append(
            {
                "method": method,
                "setting": setting,
                "saved": result.searches_saved / result.total.tokens,
                "perplexity": result.total.perplexity.interpolated,
                "tokens_per_second": result.tokens_per_second,
            }
        )
        print(points[-1], flush=True)
        return result

    base = add("kNN-LM", None, store, tuned.lmbda)
    skip = tuned.gate.gate
    recorder = Recorder()
    knn_logits.evaluate(
        model, tokenizer, store, fitting, lmbda=recorder, samples=0, **chosen, **common
    )
    features = torch.cat(recorder.features)
    expected, surest = skip.expected(features).numpy(), features[:, 0].exp().numpy()
    learned = skip.skip_arrays()
    for share in SHARES:
        threshold = float(np.quantile(expected, share))
        limit = float(np.quantile(surest, 1.0 - share))
        add("learned skipping", share, store, LearnedSkip(tuned.lmbda, threshold, learned))
        add("skipping by confidence", share, store, ConfidenceSkip(tuned.lmbda, limit))
    kinds = [("RetoMaton", without_clusters(folder))]
    if store.clusters is not None:
        kinds.append(("RetoMaton with clusters", store))
    for method, where in kinds:
        for least in LEAST:
            add(method, least, where, tuned.lmbda, retomaton=True, min_knns=least)
    for share in (0.4, 0.8):
        threshold = float(np.quantile(expected, share))
        gate = LearnedSkip(skip.inner, threshold, learned)
        add("learned skipping, learned λ", share, store, gate)
    return {
        "entries": len(store),
        "clusters": None if store.clusters is None else int(np.max(store.clusters)) + 1,
        "documents": len(documents),
        "documents_held_out": len(held_out),
        "tokens_held_out": base.total.tokens,
        **chosen,
        "lmbda": tuned.lmbda,
        "perplexity_lm": base.total.perplexity.lm,
        "gates": {kind: one.gate.to_dict() for kind, one in gates.items()},
        "seconds_of_tune": {kind: one.seconds for kind, one in gates.items()},
        "points": points,
        "seconds": time.perf_counter() - started,
    }


def plot(results, path):
    """One panel a text."""
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
        level = found["gates"]["learned"]["perplexity"]
        axes.axhline(level, linestyle=":", linewidth=1, color="black", label="learned λ")
        axes.set_title(name)
        axes.set_xlabel("searches saved, %")
        axes.set_ylabel("perplexity")
    axes.legend(fontsize=6, frameon=False)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--set", nargs=3, action="append", dest="sets", required=True)
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=1000, help="of each document, at most")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--stride", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model)
    window = knn_logits.WindowConfig(args.window, args.stride)
    results = {}
    for name, store, text in args.sets:
        documents = documents_of(text, tokenizer, args.documents, args.tokens)
        results[name] = measure(model, tokenizer, store, documents, window)
        settings = {key: value for key, value in vars(args).items() if key != "sets"}
        record("searches_saved", {**settings, "sets": list(results)}, results)
        plot(results, RESULTS / "searches_saved.png")


if __name__ == "__main__":
    main()
