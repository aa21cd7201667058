"""Imports a datastore that knn-transformers built, and compares the neighbors and perplexities.

git clone https://github.com/neulab/knn-transformers
python benchmarks/importing.py MODEL CORPUS TEXT --system knn-transformers

Both systems read the same windows. Perplexity is per token.
"""

import argparse
import importlib
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from common import first_documents, load, record

import knn_logits
from knn_logits.mixture.vote import Weighing
from knn_logits.search.retriever import Retriever

SETTINGS = ((1.0, 0.25, False), (10.0, 0.25, False), (10.0, 0.6, True))
K = 1024


def windows(ids, size, stride):
    """Yields inputs and labels. Each token is a label once, after `size - stride` other tokens."""
    for start in range(0, len(ids) - stride, stride):
        first, last = max(start + stride - size, 0), start + stride
        inputs = ids[first:last]
        labels = [-100] * (len(inputs) - stride) + inputs[-stride:]
        yield torch.tensor([inputs]), torch.tensor([labels])


def build(system, model, data, folder, dim, lists):
    """Builds keys, values and index with knn-transformers, and returns the number of entries."""
    size = sum(int((labels[:, 1:] != -100).sum()) for _, labels in data)
    saver = system.KNNSaver(size, str(folder), dim, system.KEY_TYPE.last_ffn_input)
    saver.break_into(model)
    with torch.no_grad():
        for inputs, labels in data:
            model(input_ids=inputs, labels=labels)
    saver.build_index(ncentroids=lists, code_size=64, probe=32)
    saver.break_out()
    return size


def theirs(system, name, data, folder, size, dim, temperature, lmbda, refine):
    """Returns the log-likelihood by knn-transformers, and the neighbors that it finds."""
    model, _ = load(name)
    wrapper = system.KNNWrapper(
        size, str(folder), dim, system.DIST.l2, system.KEY_TYPE.last_ffn_input,
        move_dstore_to_mem=True, knn_gpu=False, recompute_dists=refine, k=K, lmbda=lmbda,
        knn_temp=temperature, probe=32,
    )  # fmt: skip
    wrapper.break_into(model)
    found, search = [], wrapper.get_knns
    wrapper.get_knns = lambda queries: found.append(search(queries)) or found[-1]
    total = 0.0
    with torch.no_grad():
        for inputs, labels in data:
            scores = model(input_ids=inputs, labels=labels).logits[:, :-1]
            chosen = labels[:, 1:] != -100
            target = labels[:, 1:][chosen].unsqueeze(-1)
            total += scores[chosen].double().gather(-1, target).sum().item()
    return total, [(ids.numpy(), distances.numpy()) for distances, ids in found]


def ours(model, data, store, temperature, lmbda, refine):
    """Returns the same by this package, with the mixture computed in plain PyTorch."""
    config = knn_logits.KNNConfig(k=K, lmbda=lmbda, temperature=temperature, refine=refine)
    retriever = Retriever(store, config)
    caught = {}
    module = model.get_submodule(store.manifest.key.module)
    hook = module.register_forward_pre_hook(lambda _, given: caught.update(key=given[0]))
    total, found = 0.0, []
    with torch.no_grad():
        for inputs, labels in data:
            scores = model(input_ids=inputs).logits[:, :-1]
            chosen = labels[:, 1:] != -100
            target = labels[:, 1:][chosen].unsqueeze(-1)
            neighbors = retriever.search(caught["key"][:, :-1][chosen])
            weights = Weighing.of(retriever.config).log_weights(neighbors).exp().double()
            p_knn = (weights * (neighbors.values == target)).sum(dim=-1)
            p_lm = scores[chosen].double().softmax(dim=-1).gather(-1, target).squeeze(-1)
            total += (lmbda * p_knn + (1 - lmbda) * p_lm).log().sum().item()
            found.append((neighbors.ids.numpy(), neighbors.distances.numpy()))
    hook.remove()
    return total, found


def same(mine, others):
    """Compares neighbors.

    Returns:
        The share of queries with the same neighbors, and the largest relative difference of a
        distance.
    """
    equal = queries = 0
    largest = 0.0
    for (ids, distances), (other_ids, other_distances) in zip(mine, others, strict=True):
        equal += int((np.sort(ids) == np.sort(other_ids)).all(axis=1).sum())
        queries += len(ids)
        difference = np.abs(np.sort(distances) - np.sort(other_distances))
        largest = max(largest, float((difference / np.maximum(np.sort(distances), 1e-6)).max()))
    return equal / queries, largest


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("text")
    parser.add_argument("--system", required=True, help="a checkout of knn-transformers")
    parser.add_argument("--entries", type=int, default=60_000)
    parser.add_argument("--tokens", type=int, default=3_000)
    parser.add_argument("--lists", type=int, default=128)
    parser.add_argument("--window", type=int, default=512)
    args = parser.parse_args()
    sys.path.insert(0, args.system)
    system = importlib.import_module("knnlm")
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    dim, stride = model.config.hidden_size, args.window // 2

    def read(path, tokens):
        documents = first_documents(path, tokenizer, tokens)
        ids = [one for text in documents for one in tokenizer(text.text)["input_ids"]]
        return list(windows(ids[:tokens], args.window, stride))

    results = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "theirs"
        size = build(system, model, read(args.corpus, args.entries), folder, dim, args.lists)
        model, _ = load(args.model)
        store = knn_logits.import_datastore(model, tokenizer, folder, Path(place) / "mine")
        data = read(args.text, args.tokens)
        tokens = sum(int((labels[:, 1:] != -100).sum()) for _, labels in data)
        for temperature, lmbda, refine in SETTINGS:
            other, other_found = theirs(
                system, args.model, data, folder, size, dim, temperature, lmbda, refine
            )
            mine, found = ours(model, data, store, temperature, lmbda, refine)
            shared, distance = same(found, other_found) if not refine else (None, None)
            perplexity, reference = math.exp(-mine / tokens), math.exp(-other / tokens)
            results.append(
                {
                    "temperature": temperature,
                    "lmbda": lmbda,
                    "recomputed_distances": refine,
                    "perplexity_theirs": reference,
                    "perplexity": perplexity,
                    "relative_difference": abs(perplexity - reference) / reference,
                    "queries_with_the_same_neighbors": shared,
                    "largest_relative_difference_of_a_distance": distance,
                }
            )
        record(
            "importing",
            {**vars(args), "k": K},
            {"entries": size, "tokens": tokens, "runs": results},
        )


if __name__ == "__main__":
    main()
