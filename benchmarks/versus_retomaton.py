"""Compares evaluation by kNN-LM and RetoMaton with knn-transformers, in tokens per CPU second.

python benchmarks/versus_retomaton.py MODEL STORE TEXT --without STORE_WITHOUT_CLUSTERS --theirs DIR

DIR is a checkout of github.com/neulab/knn-transformers, which needs scipy. It reads this project's
datastore, which is written in its format with the same keys, values, clusters and FAISS index. Both
score the same windows, one for each document. All ways take turns in one thread. Only the CPU time
of the process is counted. "As it comes" is this package with the `pointer_weight` that it takes by
itself; all other ways have the paper's vote.
"""

import argparse
import importlib
import math
import statistics
import sys
import tempfile
import time

import faiss
import numpy as np
import torch
from common import Clock, load, record

import knn_logits
from knn_logits.search.retriever import Retriever


def ours(model, tokenizer, documents, tokens, store, args, **more):
    """Makes a function that scores the documents with this package.

    It returns CPU seconds, perplexity, and the share of searches saved.
    """

    def score():
        clock = Clock()
        settings = {} if store is None else {"k": args.k, "lmbda": args.lmbda, **more}
        if store is not None:
            settings["temperature"] = args.temperature
        found = knn_logits.evaluate(
            model,
            tokenizer,
            store,
            documents,
            window=knn_logits.WindowConfig(args.window, args.window),
            concatenate=False,
            samples=0,
            threads=1,
            check=False,
            progress=clock,
            **settings,
        )
        assert found.total.tokens == tokens
        measures = found.total.perplexity
        mixture = measures.lm if store is None else measures.interpolated
        return clock.seconds, float(mixture), found.searches_saved / tokens

    return score


def theirs(model, windows, wrapper=None):
    """Makes a function that scores the windows with knn-transformers.

    It scores one window at a time, since its state would run from one row into the next.
    """

    def score():
        if wrapper is not None:
            wrapper.break_into(model)
            wrapper.no_lookup_counter_history = []
        with torch.no_grad():
            started = time.process_time()
            total = sum(
                float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1) for ids in windows
            )
            seconds = time.process_time() - started
        saved = 0.0
        if wrapper is not None:
            saved = float(wrapper.get_metrics().get("lookups_saved", 0.0))
            wrapper.break_out()
        return seconds, math.exp(total / sum(ids.shape[1] - 1 for ids in windows)), saved

    return score


def write_theirs(knnlm, folder, model, store):
    """Writes the datastore in their format, and returns the settings of a wrapper."""
    entries, dim, kind = len(store), store.manifest.dim, model.config.model_type
    retriever = Retriever(store, knn_logits.KNNConfig())
    start = knnlm.get_dstore_path(folder, kind, entries, dim)
    for name, values in (
        ("keys", store.keys(np.arange(entries)).astype(np.float16)),
        ("vals", store.values.numpy().astype(np.int32)[:, None]),
    ):
        values.tofile(f"{start}_{name}.npy")
    faiss.write_index(retriever.index.raw, knnlm.get_index_path(folder, kind, entries, dim))
    return {
        "dstore_size": entries,
        "dstore_dir": folder,
        "dimension": dim,
        "knn_sim_func": knnlm.DIST.l2,
        "knn_keytype": knnlm.KEY_TYPE.last_ffn_input,
        "probe": retriever.index.nprobe,
        "knn_gpu": False,
        "move_dstore_to_mem": True,
    }


def with_clusters(wrapper, clusters):
    """Gives a wrapper the clusters, which it would otherwise read from a pickle."""
    import scipy.sparse

    clusters = np.array(clusters)
    entries = np.arange(len(clusters))
    # Without the pickle, the wrapper has replaced this method by a function that does nothing.
    del wrapper.extend_pointers_using_clusters
    wrapper.members = scipy.sparse.csr_matrix((np.ones(len(entries), int), (clusters, entries)))
    wrapper.cluster = torch.from_numpy(clusters.astype(np.int32))
    return wrapper


def cut(text, tokenizer, documents, window):
    """Returns the text and the tokens of windows at the beginnings of documents.

    A window is used only if its text leads to the same number of tokens.
    """
    texts, windows = [], []
    for document in knn_logits.read_corpus([text]):
        words = tokenizer.decode(tokenizer(document.text, verbose=False)["input_ids"][:window])
        ids = tokenizer(words, verbose=False)["input_ids"]
        if len(ids) == window:
            texts.append(words)
            windows.append(torch.tensor([ids]))
    return texts[:documents], windows[:documents]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store", help="a datastore with clusters")
    parser.add_argument("text", help="held-out text, in the form of a corpus")
    parser.add_argument("--without", required=True, help="the same store without clusters")
    parser.add_argument("--theirs", required=True, help="a checkout of knn-transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=1)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--lmbda", type=float, default=0.25)
    parser.add_argument("--temperature", type=float, default=10.0)
    parser.add_argument("--name", default="versus_retomaton", help="the name of the results' file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    sys.path.insert(0, args.theirs)
    knnlm, retomaton = (importlib.import_module(name) for name in ("knnlm", "retomaton"))
    # It has no entry for Llama, whose models came later.
    knnlm.KNNWrapper.model_layer_to_capture.setdefault(
        "llama",
        {knnlm.KEY_TYPE.last_ffn_input: (lambda model: model.base_model.layers[-1].mlp, True)},
    )
    model, tokenizer = load(args.model)
    other, _ = load(args.model)
    texts, windows = cut(args.text, tokenizer, args.documents, args.window)
    tokens = len(windows) * (args.window - 1)
    store, without = (knn_logits.Datastore(one) for one in (args.store, args.without))
    with tempfile.TemporaryDirectory() as folder:
        settings = write_theirs(knnlm, folder, other, store)
        settings |= {"k": args.k, "lmbda": args.lmbda, "knn_temp": args.temperature}
        wrappers = {
            "kNN-LM": knnlm.KNNWrapper(**settings),
            "RetoMaton, pointers": retomaton.RetomatonWrapper(**settings),
            "RetoMaton, clusters": with_clusters(
                retomaton.RetomatonWrapper(**settings), store.clusters
            ),
        }
        common = (model, tokenizer, texts, tokens)
        ways = {
            "model": theirs(other, windows),
            "model, ours": ours(*common, None, args),
            "kNN-LM": theirs(other, windows, wrappers["kNN-LM"]),
            "kNN-LM, ours": ours(*common, without, args),
        }
        for name, where in (("pointers", without), ("clusters", store)):
            way = f"RetoMaton, {name}"
            ways[way] = theirs(other, windows, wrappers[way])
            ways[f"{way}, ours"] = ours(*common, where, args, retomaton=True, pointer_weight=1.0)
            ways[f"{way}, as it comes"] = ours(*common, where, args, retomaton=True)
        seconds, rows = {name: [] for name in ways}, {}
        for turn in range(args.rounds + 1):
            for name, score in ways.items():
                took, perplexity, saved = score()
                if turn:
                    seconds[name].append(took)
                rows[name] = {"perplexity": round(perplexity, 2), "searches_saved": round(saved, 3)}
    for name, row in rows.items():
        row["tokens_per_cpu_second"] = round(tokens / statistics.median(seconds[name]), 1)
        row["fastest"] = round(tokens / min(seconds[name]), 1)
        if name.endswith(", ours"):
            pairs = zip(seconds[name.removesuffix(", ours")], seconds[name], strict=True)
            row["times_theirs"] = round(statistics.median(a / b for a, b in pairs), 2)
    record(args.name, {**vars(args), "tokens": tokens}, rows)


if __name__ == "__main__":
    main()
