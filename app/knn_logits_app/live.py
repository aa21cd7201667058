"""Packs the neighbors of each step for the browser, which mixes them under other settings.

The browser gets the distances, tokens and documents of the neighbors and the p_LM of their tokens,
and what counts beside the distances: tokens shared with the query, and other bonuses.
`assets/live.js` computes from them the same mixture as `knn_logits.mixture.distribution`. This
module does not know of pages.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from knn_logits import Datastore, Memory, Vote

Array = npt.NDArray[Any]

# An answer with more neighbors than this sends none of them to the browser. Tokens and documents
# are numbered in two bytes.
MOST_NEIGHBORS = 400_000
_MOST_NUMBERED = 1 << 16
# How many of the model's likeliest tokens are sent with each step.
_FAVOURITES = 5


@dataclass(frozen=True)
class Shown:
    """A document's names on the page."""

    store: str
    document: str
    title: str | None
    uri: str | None


@dataclass
class Step:
    """One step's neighbors, the nearest first.

    Attributes:
        distances: float32 [neighbors], the distances under the memory's metric.
        values: int64 [neighbors], the tokens that follow the neighbors.
        entries: int64 [neighbors], the numbers of the entries in the search.
        log_p_lm: float32 [neighbors], the model's log-probabilities of these tokens.
        shared: float32 [neighbors], the tokens before each neighbor that are also before the query.
        bonus: float32 [neighbors], what else is added to the neighbors' logits.
        others: Likely tokens that may have no neighbor, with their log p_LM.
    """

    distances: Array
    values: Array
    entries: Array
    log_p_lm: Array
    shared: Array
    bonus: Array
    others: list[tuple[int, float]]


@dataclass
class Live:
    """The steps of one answer.

    Attributes:
        memory: The memory that was asked, with its settings.
        greedy: Whether each token of the answer is the likeliest one.
        steps: The steps, in order.
        neighbors: The number of neighbors of all steps.
    """

    memory: Memory
    greedy: bool = True
    steps: list[Step] = field(default_factory=list)
    neighbors: int = 0

    def add(self, vote: Vote, tokens: Sequence[int]) -> None:
        """Adds the steps of a vote.

        Args:
            vote: The vote on one or several rows.
            tokens: The token that was chosen in each row.
        """
        found = vote.neighbors
        order = found.nearness.argsort(dim=-1, descending=True, stable=True)
        log_p_lm = vote.log_p_lm
        likeliest = log_p_lm.topk(min(_FAVOURITES, log_p_lm.shape[-1]), dim=-1)
        nothing = torch.zeros_like(found.nearness)
        shared = nothing if found.shared is None else found.shared
        bonus = replace(self.memory.weighing, suffix_weight=1.0).bonus(found)
        bonus = nothing if bonus is None else bonus
        parts = (
            found.distances.gather(-1, order).float(),
            found.values.gather(-1, order),
            found.ids.gather(-1, order),
            log_p_lm.gather(-1, found.values.gather(-1, order).to(log_p_lm.device)),
            shared.gather(-1, order),
            bonus.gather(-1, order),
        )
        arrays = [one.cpu().numpy() for one in parts]
        for row, token in enumerate(tokens):
            there = arrays[2][row] >= 0
            distances, values, entries, logs, alike, more = (one[row][there] for one in arrays)
            self.neighbors += len(values)
            others = dict(zip(*(one[row].tolist() for one in reversed(likeliest)), strict=True))
            others[token] = float(log_p_lm[row, token])
            self.steps.append(
                Step(distances, values, entries, logs, alike, more, list(others.items()))
            )

    @property
    def metric(self) -> str:
        """The metric of the distances."""
        return str(self.memory.retriever.metric)

    @property
    def _by_suffix(self) -> float:
        """What each shared token adds to a neighbor's logit."""
        return math.log(self.memory.config.suffix_weight)

    def packed(
        self, text_of: Callable[[int], str], names: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[Shown]] | None:
        """Packs the steps for the browser, with the documents whose numbers they use.

        Args:
            text_of: Returns the text of a token.
            names: The names of the datastores on the page, by their own names.

        Returns:
            The packed steps and the documents; None if they are too large to send, or if the
            ∞-gram votes as well.
        """
        if self.neighbors > MOST_NEIGHBORS or self.memory.infini_gram is not None:
            return None
        entries = _joined([one.entries for one in self.steps], np.int64)
        values = _joined([one.values for one in self.steps], np.int64)
        documents, numbers = _documents(self.memory, entries, names)
        others = [token for one in self.steps for token, _ in one.others]
        tokens = np.unique(np.concatenate([values, np.array(others, np.int64)]))
        if max(len(tokens), len(documents)) > _MOST_NUMBERED:
            return None
        place = {int(token): number for number, token in enumerate(tokens)}
        log_p_lm = []
        for one in self.steps:
            # Each token is sent once, at the place where it occurs first.
            first = np.sort(np.unique(one.values, return_index=True)[1])
            log_p_lm.append(one.log_p_lm[first])
        config = self.memory.config
        content = {
            "metric": self.metric,
            "k": config.k,
            "lmbda": config.lmbda,
            "temperature": config.temperature,
            "gate": self.memory.gate is not None,
            "greedy": self.greedy,
            "tokens": [[int(token), text_of(int(token))] for token in tokens],
            "counts": [len(one.values) for one in self.steps],
            "distances": _text(_joined([one.distances for one in self.steps], np.float32)),
            "values": _text(np.searchsorted(tokens, values).astype(np.uint16)),
            "documents": _text(numbers.astype(np.uint16)),
            "shared": _text_if_any(_joined([one.shared for one in self.steps], np.uint8)),
            "bonus": _text_if_any(_joined([one.bonus for one in self.steps], np.float32)),
            "by_shared": self._by_suffix,
            # For writing, a shared token keeps its worth in distance at another temperature.
            "keeps_worth": not self.memory.scoring
            and self.memory.stores[0].manifest.writing is not None,
            "log_p_lm": _text(_joined(log_p_lm, np.float32)),
            "others": [
                [[place[token], float(f"{log_p:.7g}")] for token, log_p in one.others]
                for one in self.steps
            ],
        }
        return content, documents


def _documents(
    memory: Memory, entries: Array, names: Mapping[str, str]
) -> tuple[list[Shown], Array]:
    """Returns the documents of entries, and for each entry the number of its document."""
    retriever = memory.retriever
    stores: list[tuple[Datastore, Array, Array]] = []
    if len(retriever.stores) == 1:
        stores.append((retriever.store, np.arange(len(entries)), entries))
    else:
        located = [retriever.locate(int(one)) for one in entries]
        for store in retriever.stores:
            mine = [place for place, (whose, _) in enumerate(located) if whose is store]
            there = np.array([located[place][1] for place in mine], np.int64)
            stores.append((store, np.array(mine, np.int64), there))
    shown: list[Shown] = []
    numbers = np.zeros(len(entries), np.int64)
    for store, places, own in stores:
        tokens = own + np.searchsorted(store.contexts.first_entry, own, side="right")
        rows = np.searchsorted(store.documents.first, tokens, side="right") - 1
        known, which = np.unique(rows, return_inverse=True)
        numbers[places] = len(shown) + which
        for row in known.tolist():
            record = store.documents[row].shown
            named = memory.name_of(store)
            name = names.get(named, named)
            shown.append(Shown(name, record.id, record.title, record.uri))
    return shown, numbers


def _joined(parts: Sequence[Array], kind: Any) -> Array:
    return np.concatenate([np.empty(0, kind), *parts]).astype(kind)


def _text(array: Array) -> str:
    """Encodes an array as base64, with the byte order of browsers."""
    return b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def _text_if_any(array: Array) -> str | None:
    return _text(array) if array.any() else None


def texts(tokenizer: Any, silent: Collection[int], end: str) -> Callable[[int], str]:
    """Makes a function that returns the text of a token.

    Args:
        tokenizer: The model's tokenizer.
        silent: The tokens that end a text.
        end: The text that is shown for these tokens.
    """

    def of(token: int) -> str:
        if token in silent:
            return end
        return str(tokenizer.decode([token], clean_up_tokenization_spaces=False))

    return of
