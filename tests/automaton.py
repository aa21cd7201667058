"""RetoMaton as the paper's sections 3 and 4 have it, with sets and loops."""

import numpy as np
from handmade import naive_entries


def documents_of(store):
    """The tokens of each document."""
    table = store.documents
    return [
        store.tokens[first : first + length].tolist()
        for first, length in zip(table.first, table.length, strict=True)
    ]


def concatenated(store):
    return store.manifest.windows.concatenate


class ByTheBook:
    """The automaton as the paper has it: sets of entries, one text, one token at a time."""

    def __init__(self, store, config):
        entries = naive_entries(documents_of(store), concatenate=concatenated(store))
        self.document = [document for _, document, _ in entries]
        self.value = [value for _, _, value in entries]
        self.keys = store.keys(np.arange(len(store))).astype(np.float64)
        self.metric, self.config = store.manifest.metric, config
        self.clusters = None if store.clusters is None else store.clusters.tolist()
        self.removed = set(store.removed_entries.tolist())
        self.last, self.searches = {}, 0

    def distance(self, state, entry):
        key = self.keys[entry]
        if self.metric == "l2":
            return float(((state - key) ** 2).sum())
        if self.metric == "cosine":
            return -float(state @ key / np.linalg.norm(state) / np.linalg.norm(key))
        return -float(state @ key)

    def step(self, state, token):
        """The candidates of a state, reached by a token from the state before."""
        state = state.double().numpy()
        right = sorted((far, i) for i, far in self.last.items() if self.value[i] == token)
        pointers = [
            i + 1
            for _, i in right
            if i + 1 < len(self.value)
            and self.document[i + 1] == self.document[i]
            and i + 1 not in self.removed
        ]
        candidates = set(pointers[: self.config.max_knns])
        if self.clusters is not None and pointers:
            named = [self.clusters[i] for i in pointers]
            for number in sorted(set(named), key=lambda one: (-named.count(one), one)):
                for i in range(len(self.value)):
                    room = len(candidates) < self.config.max_knns
                    if room and self.clusters[i] == number and i not in self.removed:
                        candidates.add(i)
        if len(pointers) < self.config.min_knns:
            self.searches += 1
            everything = sorted(
                (self.distance(state, i), i)
                for i in range(len(self.value))
                if i not in self.removed
            )
            candidates |= {i for _, i in everything[: self.config.k]}
        self.last = {i: self.distance(state, i) for i in candidates}
        return self.last

    def p_knn(self, token):
        far = np.array(list(self.last.values())) / self.config.temperature
        weights = np.exp(-(far - far.min()))
        right = [self.value[i] == token for i in self.last]
        return float(weights[right].sum() / weights.sum())
