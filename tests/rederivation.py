"""Compares RetoMaton on real text with a re-derivation of the paper's sections 3 and 4.

    python tests/rederivation.py MODEL STORE TEXT --steps 2000

Each state comes from the model, with at least half a window of the text before it. At every step
both must have the same candidates, make the same decision to search, and give each token of the
vocabulary the same probability. With `--search index` the datastore's index answers both. With
`--search exact` all entries are compared, and the re-derivation does this in float64.
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np
import torch
from automaton import ByTheBook
from transformers import AutoModelForCausalLM, AutoTokenizer

from knn_logits import Datastore, KNNConfig, read_corpus
from knn_logits.engine.forward import key_states_and_logits
from knn_logits.engine.location import find_key
from knn_logits.engine.windows import stream
from knn_logits.index.exact import ExactIndex
from knn_logits.mixture.distribution import mix
from knn_logits.mixture.weights import Weighing
from knn_logits.search.retomaton import RetomatonRetriever

WINDOW, STRIDE = 512, 256


class AtScale(ByTheBook):
    """The re-derived automaton with distances computed in arrays, since loops would take seconds.

    Args:
        store: The datastore.
        config: The settings.
        retriever: A retriever whose index answers the searches; None compares all keys in float64.
    """

    def __init__(self, store, config, retriever=None):
        super().__init__(store, config)
        self.retriever = retriever

    def search(self, state):
        if self.retriever is not None:
            found = self.retriever.search(torch.from_numpy(state)[None])
            pairs = zip(found.ids[0].tolist(), found.distances[0].tolist(), strict=True)
            return {i: far if self.metric == "l2" else -far for i, far in pairs if i >= 0}
        far = self.far(state)
        far[list(self.removed)] = np.inf
        nearest = np.argsort(far, kind="stable")[: self.config.k]
        return {int(i): float(far[i]) for i in nearest}

    def far(self, state):
        """Returns a number for each entry that is smaller for nearer entries, float64 [entries]."""
        if self.metric == "l2":
            parts = np.array_split(self.keys, 1 + len(self.keys) // 8192)
            return np.concatenate([np.square(part - state).sum(-1) for part in parts])
        lengths = np.linalg.norm(self.keys, axis=-1) if self.metric == "cosine" else 1.0
        scale = np.linalg.norm(state) if self.metric == "cosine" else 1.0
        return -(self.keys @ state) / lengths / scale


def states_of(model, tokenizer, text, steps):
    """Returns the first tokens of a text, with the state and the log-probabilities after each."""
    ids = tokenizer(text, verbose=False)["input_ids"][: steps + 1]
    states, log_p = [], []
    for piece in stream([np.array(ids, np.int32)], WINDOW, STRIDE):
        inputs = {"input_ids": torch.from_numpy(piece.tokens[:-1].astype(np.int64))[None]}
        found, logits = key_states_and_logits(model, find_key(model), inputs)
        states.append(found[0, piece.skip :].clone())
        log_p.append(torch.log_softmax(logits[0, piece.skip :].float(), dim=-1))
    return torch.tensor([ids]), torch.cat(states), torch.cat(log_p)


def compare(ids, states, log_p_lm, retriever, book, counts):
    """Compares all steps of one text, and adds the differences to the counts."""
    for step, state in enumerate(states):
        found = retriever.search_steps(state[None, None], ids[:, : step + 1])
        before = book.searches
        expected = book.step(state, int(ids[0, step]))
        own = found.ids[0][found.ids[0] >= 0].tolist()
        counts["steps"] += 1
        counts["searches"] += int(found.searched.sum())
        counts["candidates"] += len(own)
        counts["other candidates"] += set(own) != set(expected) or len(own) != len(set(own))
        counts["other searches"] += int(found.searched.sum()) != book.searches - before
        weights = Weighing.of(retriever.config, retriever.weights).log_weights(found)
        votes = torch.zeros(log_p_lm.shape[-1], dtype=torch.float64)
        for token, vote in book.votes().items():
            votes[token] = vote
        lmbda = retriever.config.lmbda
        knn = torch.zeros(1, log_p_lm.shape[-1]).scatter_add_(-1, found.values, weights.exp())
        mixed = mix(log_p_lm[step : step + 1], weights, found.values, lmbda).exp()
        plain = lmbda * votes + (1.0 - lmbda) * log_p_lm[step].double().exp()
        for name, one, other in (("p_kNN", knn, votes), ("p", mixed, plain)):
            counts[name] = max(counts[name], float((one[0].double() - other).abs().max()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("store")
    parser.add_argument("text", help="a text that is not in the datastore")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--search", choices=["index", "exact"], default="index")
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--lmbda", type=float, default=0.25)
    parser.add_argument("--temperature", type=float, default=10.0)
    parser.add_argument("--min-knns", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(args.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    store = Datastore(args.store)
    config = KNNConfig(
        args.k,
        args.lmbda,
        args.temperature,
        retomaton=True,
        min_knns=args.min_knns,
        pointer_weight=1.0,
    )
    exact = None
    if args.search == "exact":
        exact = ExactIndex.from_batches(
            store.key_batches(65_536), len(store), store.manifest.dim, store.manifest.metric
        )
    retriever = RetomatonRetriever(store, config, index=exact, threads=1)
    book = AtScale(store, config, None if exact else retriever)
    counts = dict.fromkeys(
        ("steps", "searches", "candidates", "other candidates", "other searches"), 0
    )
    counts |= {"p_kNN": 0.0, "p": 0.0}
    with torch.inference_mode():
        for document in read_corpus([args.text]):
            left = args.steps - counts["steps"]
            if left <= 0:
                break
            book.last = {}
            text = states_of(model, tokenizer, document.text, left)
            compare(*text, retriever, book, counts)
    print(json.dumps({"clusters": store.clusters is not None, "search": args.search, **counts}))
    wrong = counts["other candidates"] or counts["other searches"] or counts["p"] > 1e-6
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
