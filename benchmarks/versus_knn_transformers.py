"""Compares evaluation with knn-transformers, end to end, in tokens per CPU second.

    python benchmarks/versus_knn_transformers.py MODEL CORPUS TEXT --theirs DIR

DIR is a checkout of github.com/neulab/knn-transformers, which needs scipy. It computes the keys and
its IVFPQ index itself; this package imports both, and also builds its own index over these keys.
Clusters are the same for both. Both score the same windows, one for each document of TEXT. All ways
take turns in one thread, and only the CPU time of the process is counted. "Ours" has the paper's
vote on the imported index; "as it comes" is this package with the `pointer_weight` that it takes by
itself; "own index" has the index that `build` makes.
"""

import argparse
import importlib
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

import faiss
import numpy as np
import torch
from common import Clock, first_documents, load, record
from importing import build, windows

import knn_logits


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
            threads=1,
            check=False,
            progress=clock,
            **settings,
        )
        assert found.tokens == tokens
        measures = found.perplexity
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
    parser.add_argument("corpus", help="text of the datastore")
    parser.add_argument("text", help="held-out text, in the form of a corpus")
    parser.add_argument("--theirs", required=True, help="a checkout of knn-transformers")
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--lists", type=int, default=1024, help="inverted lists of their index")
    parser.add_argument("--clusters", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=4)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--lmbda", type=float, default=0.25)
    parser.add_argument("--temperature", type=float, default=10.0)
    parser.add_argument("--name", default="versus_knn_transformers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    sys.path.insert(0, args.theirs)
    knnlm, retomaton = (importlib.import_module(name) for name in ("knnlm", "retomaton"))
    model, tokenizer = load(args.model)
    other, _ = load(args.model)
    dim = model.config.hidden_size
    texts, cuts = cut(args.text, tokenizer, args.documents, args.window)
    tokens = len(cuts) * (args.window - 1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "theirs"
        documents = first_documents(args.corpus, tokenizer, args.entries)
        ids = [one for text in documents for one in tokenizer(text.text)["input_ids"]]
        data = list(windows(ids[: args.entries], args.window, args.window // 2))
        size = build(knnlm, other, data, folder, dim, args.lists)
        plain, whole, own = (
            knn_logits.import_datastore(model, tokenizer, folder, Path(place) / name)
            for name in ("plain", "clustered", "own")
        )
        own = knn_logits.build_index(own)
        clustered = knn_logits.cluster(whole, args.clusters)
        settings = {
            "dstore_size": size,
            "dstore_dir": str(folder),
            "dimension": dim,
            "knn_sim_func": knnlm.DIST.l2,
            "knn_keytype": knnlm.KEY_TYPE.last_ffn_input,
            "probe": plain.manifest.index.nprobe,
            "knn_gpu": False,
            "move_dstore_to_mem": True,
            "k": args.k,
            "lmbda": args.lmbda,
            "knn_temp": args.temperature,
        }
        wrappers = {
            "kNN-LM": knnlm.KNNWrapper(**settings),
            "RetoMaton, pointers": retomaton.RetomatonWrapper(**settings),
            "RetoMaton, clusters": with_clusters(
                retomaton.RetomatonWrapper(**settings), clustered.clusters
            ),
        }
        common = (model, tokenizer, texts, tokens)
        ways = {
            "model": theirs(other, cuts),
            "model, ours": ours(*common, None, args),
            "kNN-LM": theirs(other, cuts, wrappers["kNN-LM"]),
            "kNN-LM, ours": ours(*common, plain, args),
            "kNN-LM, own index": ours(*common, own, args),
        }
        for name, store in (("pointers", plain), ("clusters", clustered)):
            way = f"RetoMaton, {name}"
            ways[way] = theirs(other, cuts, wrappers[way])
            ways[f"{way}, ours"] = ours(*common, store, args, retomaton=True, pointer_weight=1.0)
            ways[f"{way}, as it comes"] = ours(*common, store, args, retomaton=True)
        seconds, rows = {name: [] for name in ways}, {}
        for turn in range(args.rounds + 1):
            for name, score in ways.items():
                took, perplexity, saved = score()
                if turn:
                    seconds[name].append(took)
                rows[name] = {"perplexity": round(perplexity, 4), "searches_saved": round(saved, 3)}
        indexes = {name: str(one.manifest.index) for name, one in (("ours", plain), ("own", own))}
    for name, row in rows.items():
        row["tokens_per_cpu_second"] = round(tokens / statistics.median(seconds[name]), 1)
        row["fastest"] = round(tokens / min(seconds[name]), 1)
        peer = name.rpartition(", ")[0]
        if name.endswith((", ours", ", own index", ", as it comes")):
            pairs = zip(seconds[peer], seconds[name], strict=True)
            row["times_theirs"] = round(statistics.median(a / b for a, b in pairs), 2)
    record(args.name, {**vars(args), "tokens": tokens, "indexes": indexes}, rows)


if __name__ == "__main__":
    main()
