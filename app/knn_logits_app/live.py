"""What the neighbors said at each step, for the browser, which then mixes under other settings.

The browser gets distances, tokens, documents and p_LM of what is needed; `assets/live.js` computes
from them what `knn_logits.distribution` does. Nothing here knows of pages.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from knn_logits import Datastore, Memory, Vote

Array = npt.NDArray[Any]

# Neighbors of a whole answer; beyond, the browser is sent none. Numbers in two bytes.
MOST_NEIGHBORS = 400_000
_MOST_NUMBERED = 1 << 16
# Tokens that the model alone finds likeliest, at each step.
_FAVOURITES = 5


@dataclass(frozen=True)
class Shown:
    """A document as the page names it."""

    store: str
    document: str
    title: str | None
    uri: str | None


@dataclass
class Step:
    """One step's neighbors, the nearest first.

    Attributes:
        distances: float32 [neighbors].
        values: int64 [neighbors], their tokens.
        entries: int64 [neighbors], as the search numbers them.
        log_p_lm: float32 [neighbors], the model's log-probability of each one's token.
        others: Tokens without a vote that may be wanted, with their log p_LM.
    """

    distances: Array
    values: Array
    entries: Array
    log_p_lm: Array
    others: list[tuple[int, float]]


@dataclass
class Live:
    """The steps of one answer.

    Attributes:
        memory: What was asked, under the settings that hold.
        greedy: Whether each token is the likeliest one.
        steps: In order.
    """

    memory: Memory
    greedy: bool = True
    steps: list[Step] = field(default_factory=list)
    neighbors: int = 0

    def add(self, vote: Vote, tokens: Sequence[int]) -> None:
        """Notes a vote.

        Args:
            vote: Of some rows.
            tokens: The token that stands in each row's place.
        """
        found = vote.neighbors
        nearest = found.distances if self.metric == "l2" else -found.distances
        order = nearest.argsort(dim=-1, stable=True)
        log_p_lm = vote.log_p_lm
        likeliest = log_p_lm.topk(min(_FAVOURITES, log_p_lm.shape[-1]), dim=-1)
        parts = (
            found.distances.gather(-1, order).float(),
            found.values.gather(-1, order),
            found.ids.gather(-1, order),
            log_p_lm.gather(-1, found.values.gather(-1, order).to(log_p_lm.device)),
        )
        arrays = [one.cpu().numpy() for one in parts]
        for row, token in enumerate(tokens):
            there = arrays[2][row] >= 0
            distances, values, entries, logs = (one[row][there] for one in arrays)
            self.neighbors += len(values)
            others = dict(zip(*(one[row].tolist() for one in reversed(likeliest)), strict=True))
            others[token] = float(log_p_lm[row, token])
            self.steps.append(Step(distances, values, entries, logs, list(others.items())))

    @property
    def metric(self) -> str:
        """Of the distances."""
        return str(self.memory.retriever.metric)

    def packed(
        self, text_of: Callable[[int], str], names: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[Shown]] | None:
        """The steps as the browser reads them, and the documents that they number.

        Args:
            text_of: The text of a token.
            names: The page's names of datastores, by their own.

        Returns:
            None where there is too much of it, or where other votes than the neighbors' count.
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
            # Of each token once, where it stands first.
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
    """The documents of entries that a search found, and the number of each entry's."""
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
            name = names.get(store.name, store.name)
            shown.append(Shown(name, record.id, record.title, record.uri))
    return shown, numbers


def _joined(parts: Sequence[Array], kind: Any) -> Array:
    return np.concatenate([np.empty(0, kind), *parts]).astype(kind)


def _text(array: Array) -> str:
    """Numbers as text, in the order of bytes that browsers have."""
    return b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def texts(tokenizer: Any, silent: Collection[int], end: str) -> Callable[[int], str]:
    """What gives a token's text.

    Args:
        tokenizer: The model's.
        silent: Tokens that end a text.
        end: What stands for those.
    """

    def of(token: int) -> str:
        if token in silent:
            return end
        return str(tokenizer.decode([token], clean_up_tokenization_spaces=False))

    return of
