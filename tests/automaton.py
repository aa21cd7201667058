"""A re-derivation of RetoMaton from the paper's sections 3 and 4, with sets and loops."""

import math
from collections import Counter

import numpy as np
from handmade import naive_entries


def documents_of(store):
    """Returns the tokens of each document."""
    table = store.documents
    return [
        store.tokens[first : first + length].tolist()
        for first, length in zip(table.first, table.length, strict=True)
    ]


def concatenated(store):
    return store.manifest.windows.concatenate


class ByTheBook:
    """The paper's automaton, with sets of entries. It reads one text, token by token."""

    def __init__(self, store, config):
        entries = naive_entries(documents_of(store), concatenate=concatenated(store))
        self.document = [document for _, document, _ in entries]
        self.value = [value for _, _, value in entries]
        self.keys = store.keys(np.arange(len(store))).astype(np.float64)
        self.metric, self.config = store.manifest.metric, config
        self.clusters = None if store.clusters is None else store.clusters.tolist()
        self.removed = set(store.removed_entries.tolist())
        self.members = {}
        for entry, cluster in enumerate(self.clusters or []):
            if entry not in self.removed:
                self.members.setdefault(cluster, []).append(entry)
        self.last, self.searches = {}, 0
        self.followed = set()

    def distance(self, state, entry):
        key = self.keys[entry]
        if self.metric == "l2":
            return float(((state - key) ** 2).sum())
        if self.metric == "cosine":
            return -float(state @ key / np.linalg.norm(state) / np.linalg.norm(key))
        return -float(state @ key)

    def search(self, state):
        """Returns the k nearest of all entries, with their distances."""
        everything = sorted(
            (self.distance(state, i), i) for i in range(len(self.value)) if i not in self.removed
        )
        return {i: far for far, i in everything[: self.config.k]}

    def step(self, state, token):
        """Returns the candidates of a state, which a token reached from the state before."""
        state = state.double().numpy()
        right = sorted((far, i) for i, far in self.last.items() if self.value[i] == token)
        pointers = [
            i + 1
            for _, i in right
            if i + 1 < len(self.value)
            and self.document[i + 1] == self.document[i]
            and i + 1 not in self.removed
        ]
        self.followed = set(pointers)
        candidates = set(pointers[: self.config.max_knns])
        if self.clusters is not None and pointers:
            named = Counter(self.clusters[i] for i in pointers)
            for number in sorted(named, key=lambda one: (-named[one], one)):
                for i in self.members[number]:
                    if len(candidates) < self.config.max_knns:
                        candidates.add(i)
        self.last = {i: self.distance(state, i) for i in candidates}
        if len(pointers) < self.config.min_knns:
            self.searches += 1
            self.last |= self.search(state)
        return self.last

    def votes(self):
        """Returns p_kNN of each token that the last step's candidates vote for."""
        nearest = min(self.last.values())
        weights = {
            i: math.exp(-(far - nearest) / self.config.temperature)
            * (self.config.pointer_weight if i in self.followed else 1.0)
            for i, far in self.last.items()
        }
        total, votes = sum(weights.values()), Counter()
        for i, weight in weights.items():
            votes[self.value[i]] += weight / total
        return votes

    def p_knn(self, token):
        return self.votes()[token]
