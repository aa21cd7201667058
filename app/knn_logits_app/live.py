"""Packs the neighbors of each step for the browser, which mixes them under other settings.

The browser gets the distances, tokens and documents of the neighbors, the p_LM of their tokens, and
what else is added to the neighbors' logits.
`assets/live.js` computes from them the same mixture as the library.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from knn_logits import Datastore, Memory
from knn_logits.hosting import Vote

Array = npt.NDArray[Any]

# An answer with more neighbors than this sends none of them to the browser. Tokens and documents
# are numbered in two bytes.
MOST_NEIGHBORS = 400_000
_MOST_NUMBERED = 1 << 16
# How many of the model's likeliest tokens are sent with each step.
_LIKELIEST = 5


@dataclass(frozen=True)
class Shown:
    """A document's names on the page."""

    store: str
    document: str
    title: str | None
    uri: str | None


@dataclass
class Step:
    """One step's neighbors, the nearest first, in arrays [neighbors]."""

    distances: Array  # float32, under the memory's metric
    values: Array  # int64, the tokens that follow the neighbors
    entries: Array  # int64, the numbers of the entries in the search
    log_p_lm: Array  # float32, the model's log-probabilities of these tokens
    bonus: Array  # float32, what is added to the neighbors' logits beside the distances
    likeliest: dict[int, float]  # tokens that may have no neighbor, with their log p_LM


@dataclass
class Live:
    """The steps of one answer."""

    memory: Memory
    greedy: bool = True
    steps: list[Step] = field(default_factory=list)
    neighbors: int = 0

    def add(self, vote: Vote, tokens: Sequence[int]) -> None:
        """Adds the steps of a vote on one or several rows, with the token chosen in each."""
        neighbors, log_p_lm = vote.neighbors, vote.log_p_lm
        order = neighbors.nearness.argsort(dim=-1, descending=True, stable=True)
        top = log_p_lm.topk(min(_LIKELIEST, log_p_lm.shape[-1]), dim=-1)
        zeros = torch.zeros_like(neighbors.nearness)
        bonus = self.memory.weighing.bonus(neighbors)
        values = neighbors.values.gather(-1, order)
        columns = {
            "distances": neighbors.distances.gather(-1, order).float(),
            "values": values,
            "entries": neighbors.ids.gather(-1, order),
            "log_p_lm": log_p_lm.gather(-1, values.to(log_p_lm.device)),
            "bonus": (zeros if bonus is None else bonus).gather(-1, order),
        }
        arrays = {name: column.cpu().numpy() for name, column in columns.items()}
        for row, token in enumerate(tokens):
            present = arrays["entries"][row] >= 0
            likeliest = dict(zip(top.indices[row].tolist(), top.values[row].tolist(), strict=True))
            likeliest[token] = float(log_p_lm[row, token])
            parts = {name: array[row][present] for name, array in arrays.items()}
            step = Step(**parts, likeliest=likeliest)
            self.neighbors += len(step.values)
            self.steps.append(step)

    @property
    def adaptive(self) -> bool:
        """Whether an adaptive gate sets λ, which the browser cannot follow."""
        return getattr(self.memory.gate, "kind", None) == "adaptive"

    @property
    def metric(self) -> str:
        return str(self.memory.retriever.metric)

    def packed(self, text_of: Callable[[int], str]) -> tuple[dict[str, Any], list[Shown]] | None:
        """Packs the steps; None if they are too large, or more than neighbors vote."""
        if self.neighbors > MOST_NEIGHBORS or self.memory.experts:
            return None
        entries, values = self._joined("entries", np.int64), self._joined("values", np.int64)
        documents, numbers = _documents(self.memory, entries)
        likeliest = [token for step in self.steps for token in step.likeliest]
        tokens = np.unique(np.concatenate([values, np.array(likeliest, np.int64)]))
        if max(len(tokens), len(documents)) > _MOST_NUMBERED:
            return None
        place = {int(token): number for number, token in enumerate(tokens)}
        # Each token's log p_LM is sent once, at the place where the token occurs first.
        log_p_lm = [
            step.log_p_lm[np.sort(np.unique(step.values, return_index=True)[1])]
            for step in self.steps
        ]
        config = self.memory.config
        content = {
            "metric": self.metric,
            "k": config.k,
            "lmbda": config.lmbda,
            "temperature": config.temperature,
            "gate": self.memory.gate is not None,
            "greedy": self.greedy,
            "tokens": [[int(token), text_of(int(token))] for token in tokens],
            "counts": [len(step.values) for step in self.steps],
            "distances": _text(self._joined("distances", np.float32)),
            "values": _text(np.searchsorted(tokens, values).astype(np.uint16)),
            "documents": _text(numbers.astype(np.uint16)),
            "bonus": _text(bonus) if (bonus := self._joined("bonus", np.float32)).any() else None,
            "log_p_lm": _text(np.concatenate([np.empty(0), *log_p_lm]).astype(np.float32)),
            "others": [
                [[place[token], float(f"{log_p:.7g}")] for token, log_p in step.likeliest.items()]
                for step in self.steps
            ],
        }
        return content, documents

    def _joined(self, name: str, kind: Any) -> Array:
        parts = [getattr(step, name) for step in self.steps]
        return np.concatenate([np.empty(0, kind), *parts]).astype(kind)


def _documents(memory: Memory, entries: Array) -> tuple[list[Shown], Array]:
    """Returns the documents of entries, and for each entry the number of its document."""
    retriever = memory.retriever
    parts: list[tuple[Datastore, Array, Array]] = []
    if len(retriever.stores) == 1:
        parts.append((retriever.store, np.arange(len(entries)), entries))
    else:
        located = [retriever.locate(int(entry)) for entry in entries]
        for store in retriever.stores:
            rows = [place for place, (owner, _) in enumerate(located) if owner is store]
            inner = np.array([located[place][1] for place in rows], np.int64)
            parts.append((store, np.array(rows, np.int64), inner))
    documents: list[Shown] = []
    numbers = np.zeros(len(entries), np.int64)
    for store, places, inner in parts:
        tokens = inner + np.searchsorted(store.contexts.first_entry, inner, side="right")
        numbered = np.searchsorted(store.documents.first, tokens, side="right") - 1
        distinct, which = np.unique(numbered, return_inverse=True)
        numbers[places] = len(documents) + which
        name = memory.name_of(store)
        for row in distinct.tolist():
            record = store.documents[row].shown
            documents.append(Shown(name, record.id, record.title, record.uri))
    return documents, numbers


def _text(array: Array) -> str:
    """Encodes an array as base64, with the byte order of browsers."""
    return b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode("ascii")
