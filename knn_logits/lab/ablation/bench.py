"""The parts that all studies share: datastores of the corpus, and queries of the other text.

Both are files of the work folder. The first study that needs one makes it, and a run that continues
after an interruption reads it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array
from knn_logits.building.builder import build_datastore
from knn_logits.corpus.documents import Document
from knn_logits.engine.forward import evaluating
from knn_logits.engine.location import DEFAULT_KEY, find_key
from knn_logits.errors import CorpusError
from knn_logits.index.base import Index
from knn_logits.index.exact import ExactIndex
from knn_logits.lab.ablation.other_keys import other_keys, read_keys
from knn_logits.lab.ablation.places import key_places
from knn_logits.measure.bench import open_bench
from knn_logits.measure.text_pass import score_pieces
from knn_logits.measure.tune.parts import halved
from knn_logits.progress import Progress
from knn_logits.search.neighbors import Neighbors
from knn_logits.settings.config import IndexConfig, Metric, WindowConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import write_arrays
from knn_logits.store.reading import read_arrays

_KEYS_AT_ONCE = 65_536


@dataclass(frozen=True)
class Queries:
    """The queries of a text, one row for each token.

    Attributes:
        states: float32 [tokens, dim], the state before each token, at one place of the model.
        targets: int64 [tokens], the tokens.
        log_p_lm: float32 [tokens], the model's log-probability of each token.
        places: int64 [tokens], the place of each token in the text.
        documents: int64 [tokens], the number of each token's document.
        inside: int64 [tokens], the place of each token in its document.
        second: bool [tokens], whether a token is in the half that is held out.
    """

    states: Tensor
    targets: Tensor
    log_p_lm: Tensor
    places: Tensor
    documents: Tensor
    inside: Tensor
    second: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass
class Studied:
    """A model, a corpus and another text, ready to be studied.

    Attributes:
        model: A causal model.
        tokenizer: The tokenizer of the model.
        corpus: The documents of the datastores.
        texts: The documents that are predicted.
        work: The folder for datastores and queries.
        largest_k: The largest k, the neighbors of each query.
        seed: The seed of every random choice.
        progress: A callback for the progress.
    """

    model: nn.Module
    tokenizer: Any
    corpus: Sequence[Document]
    texts: Sequence[Document]
    work: Path
    largest_k: int
    seed: int
    progress: Progress
    _store: Datastore | None = None
    _places: tuple[list[str], list[Path]] | None = None
    _queries: dict[str, Queries] = field(default_factory=dict)

    def store(self) -> Datastore:
        """Opens the datastore, whose keys are the FFN's input in full precision."""
        if self._store is None:
            folder = self.work / "store"
            if not (folder / "datastore.json").exists():
                build_datastore(
                    self.model,
                    self.tokenizer,
                    self.corpus,
                    folder,
                    key=DEFAULT_KEY,
                    window=WindowConfig(),
                    index=IndexConfig("exact", seed=self.seed),
                    calibrate=False,
                    keys_dtype="float32",
                    progress=self.progress,
                )
            self._store = Datastore(folder)
        return self._store

    def keys(self, key: str = DEFAULT_KEY) -> tuple[Iterable[Array], int]:
        """Returns the keys of all entries at a place, in full precision.

        Args:
            key: The place, one of `key_places`.

        Returns:
            Batches of keys, float32 [rows, dim] each, in the entries' order; and the length of a
            key.
        """
        store = self.store()
        if key == DEFAULT_KEY:
            return store.key_batches(_KEYS_AT_ONCE), store.manifest.dim
        if self._places is None:
            names = [one for one in key_places(self.model).values() if one != DEFAULT_KEY]
            files = other_keys(self.model, store, names, self.work, self.progress)
            self._places = names, files
        names, files = self._places
        number = names.index(key)
        return read_keys(files, number), next(read_keys(files, number)).shape[1]

    def queries(self, key: str = DEFAULT_KEY) -> Queries:
        """Returns the queries of the text, with the states at a place."""
        if key not in self._queries:
            path = self.work / f"queries-{file_name(key)}.safetensors"
            if not path.exists():
                write_arrays(path, self._read(key), {})
            arrays = read_arrays(path)[0]
            arrays["second"] = arrays["second"].astype(bool)
            self._queries[key] = Queries(
                **{name: torch.from_numpy(one) for name, one in arrays.items()}
            )
        return self._queries[key]

    def _read(self, key: str) -> dict[str, Array]:
        own = self.store().manifest.windows
        window = WindowConfig(own.window, own.stride)
        bench = open_bench(self.model, self.tokenizer, None, window=window)
        text, halves = halved(bench, {"text": self.texts})
        parts: list[dict[str, Array]] = []
        done = 0
        self.progress(f"text, {key}", 0, None)
        location = find_key(self.model, key)
        with evaluating(self.model):
            for scored in score_pieces(self.model, location, text.pieces(), bench.batch_tokens):
                second = halves.second(scored.places)
                documents_at = text.documents_at(scored.places)
                parts.append(
                    {
                        "states": scored.states.float().cpu().numpy(),
                        "targets": scored.targets.numpy(),
                        "log_p_lm": scored.log_p_lm.numpy(),
                        "places": scored.places,
                        "documents": documents_at,
                        "inside": scored.places - np.array(text.starts)[documents_at],
                        "second": second.astype(np.uint8),
                    }
                )
                done += len(second)
                self.progress(f"text, {key}", done, text.tokens)
        whole = {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}
        if not whole["second"].any() or whole["second"].all():
            raise CorpusError(
                "the text is too short to choose settings on one half of it: give more text"
            )
        order = np.argsort(whole["places"], kind="stable")
        return {name: one[order] for name, one in whole.items()}

    def exact(
        self,
        key: str = DEFAULT_KEY,
        metric: Metric = "l2",
        rounded: Callable[[Array], Array] | None = None,
    ) -> ExactIndex:
        """Makes an index that computes every distance.

        Args:
            key: The place of the keys.
            metric: The metric of the distances.
            rounded: Rounds the keys; None leaves them as they are.
        """
        batches, dim = self.keys(key)
        some = batches if rounded is None else (rounded(one) for one in batches)
        return ExactIndex.from_batches(some, len(self.store()), dim, metric)


def half(keys: Array) -> Array:
    """Rounds keys to half precision, which is a datastore's default."""
    found: Array = keys.astype(np.float16).astype(np.float32)
    return found


def search(index: Index, values: Tensor, queries: Tensor, k: int) -> Neighbors:
    """Finds the neighbors of some queries.

    Args:
        index: Any index.
        values: int64 [entries], the value of each entry.
        queries: float32 [rows, dim].
        k: Neighbors of each query.
    """
    nearness, ids = index.search(queries, k)
    return Neighbors(ids, nearness, values[ids.clamp(min=0)], index.metric)


def file_name(name: str) -> str:
    """Makes a file name of a name, by replacing all but letters and digits."""
    return "".join(one if one.isalnum() else "-" for one in name)
