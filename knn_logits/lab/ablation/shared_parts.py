"""Datastores, keys and queries that all studies share, as files of the work folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from knn_logits.arrays import Array
from knn_logits.building.builder import build_datastore
from knn_logits.corpus.documents import Document
from knn_logits.engine.forward import evaluating, input_device, states_at, windows_batch
from knn_logits.engine.keys import tokens_of_pass
from knn_logits.engine.location import DEFAULT_KEY, KeyLocation, decoder_of, find_key
from knn_logits.engine.windows import TextWindow, batches, windows_of
from knn_logits.errors import CorpusError, ModelError
from knn_logits.index.exact import ExactIndex
from knn_logits.measure.bench import halved, open_bench
from knn_logits.measure.text_pass import score_pieces
from knn_logits.metrics import DEFAULT_METRIC, Metric
from knn_logits.progress import Progress
from knn_logits.settings.config import IndexConfig
from knn_logits.settings.passes import WindowConfig
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import write_arrays
from knn_logits.store.reading import read_arrays

_KEYS_AT_ONCE = 65_536
# Entries of a file with the keys of other places.
FILE_ENTRIES = 8192


@dataclass(frozen=True)
class Queries:
    """The queries of a text, one row for each token, in the text's order."""

    states: Tensor  # float32 [tokens, dim], before each token, at one place of the model
    targets: Tensor  # int64 [tokens]
    log_p_lm: Tensor  # float32 [tokens]
    places: Tensor  # int64 [tokens], of each token in the text
    documents: Tensor  # int64 [tokens], numbers
    inside: Tensor  # int64 [tokens], the place of each token in its document
    second: Tensor  # bool [tokens], whether a token is in the half that is held out

    def __len__(self) -> int:
        return len(self.targets)


@dataclass
class Studied:
    """A model, a corpus and another text, ready to be studied."""

    model: nn.Module
    tokenizer: Any
    corpus: Sequence[Document]
    texts: Sequence[Document]
    work: Path
    largest_k: int
    seed: int
    progress: Progress
    _queries: dict[str, Queries] = field(default_factory=dict)

    @cached_property
    def store(self) -> Datastore:
        """The datastore, whose keys are the FFN's input in full precision."""
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
        return Datastore(folder)

    def keys(self, key: str = DEFAULT_KEY) -> tuple[Iterable[Array], int]:
        """The keys of all entries at a place: batches of float32 [rows, dim], and dim."""
        if key == DEFAULT_KEY:
            return self.store.key_batches(_KEYS_AT_ONCE), self.store.manifest.dim
        number = str(self._other_places.index(key))
        dim = read_arrays(self._key_files[0])[0][number].shape[1]
        return (read_arrays(path)[0][number] for path in self._key_files), dim

    @cached_property
    def _other_places(self) -> list[str]:
        return [key for key in key_places(self.model).values() if key != DEFAULT_KEY]

    @cached_property
    def _key_files(self) -> list[Path]:
        """The keys at all other places, in one pass of the model over the corpus."""
        locations = [find_key(self.model, key) for key in self._other_places]
        paths = []
        with evaluating(self.model):
            for number, group in enumerate(_groups(self.store)):
                self.progress("keys of other places", group[0].first_entry, len(self.store))
                make = partial(place_keys, self.model, self.store, locations, group)
                paths.append(self.work / f"keys-{number:05d}.safetensors")
                stored_arrays(paths[-1], make)
        self.progress("keys of other places", len(self.store), len(self.store))
        return paths

    def queries(self, key: str = DEFAULT_KEY) -> Queries:
        """The queries of the text, with the states at a place."""
        if key not in self._queries:
            path = self.work / f"queries-{file_name(key)}.safetensors"
            arrays = stored_arrays(path, lambda: read_queries(self, key))
            arrays["second"] = arrays["second"].astype(bool)
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            self._queries[key] = Queries(**tensors)
        return self._queries[key]

    def exact(
        self,
        key: str = DEFAULT_KEY,
        metric: Metric = DEFAULT_METRIC,
        rounding: Callable[[Array], Array] | None = None,
    ) -> ExactIndex:
        """An index that computes every distance, from keys that may be rounded."""
        keys, dim = self.keys(key)
        rounded = keys if rounding is None else map(rounding, keys)
        return ExactIndex.from_batches(rounded, len(self.store), dim, metric)


def read_queries(studied: Studied, key: str) -> dict[str, Array]:
    """Runs the model over the text, for the fields of `Queries`."""
    windows = studied.store.manifest.windows
    window = WindowConfig(windows.window, windows.stride)
    bench = open_bench(studied.model, studied.tokenizer, None, window=window)
    text, halves = halved(bench, {"text": studied.texts})
    location, phase = find_key(studied.model, key), f"text, {key}"
    parts: list[dict[str, Array]] = []
    done = 0
    studied.progress(phase, 0, None)
    with evaluating(studied.model):
        for scored in score_pieces(studied.model, location, text.pieces(), bench.batch_tokens):
            documents = text.documents_at(scored.places)
            parts.append(
                {
                    "states": scored.states.float().cpu().numpy(),
                    "targets": scored.targets.numpy(),
                    "log_p_lm": scored.log_p_lm.numpy(),
                    "places": scored.places,
                    "documents": documents,
                    "inside": scored.places - np.array(text.starts)[documents],
                    "second": halves.second(scored.places).astype(np.uint8),
                }
            )
            done += len(documents)
            studied.progress(phase, done, text.tokens)
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if not whole["second"].any() or whole["second"].all():
        raise CorpusError("the text is too short to tune settings on half of it: add more text")
    order = np.argsort(whole["places"], kind="stable")
    return {name: array[order] for name, array in whole.items()}


def stored_arrays(path: Path, make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """The arrays of a file of the work folder, which are made if it is missing."""
    if not path.exists():
        write_arrays(path, make(), {})
    return read_arrays(path)[0]


def half(keys: Array) -> Array:
    """Rounds keys to half precision, which is a datastore's default."""
    rounded: Array = keys.astype(np.float16).astype(np.float32)
    return rounded


def file_name(name: str) -> str:
    """Makes a file name of a name, by replacing all but letters and digits."""
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def key_places(model: nn.Module) -> dict[str, str]:
    """The places of a causal model that the papers compare, for `find_key`, by name."""
    places = {"FFN's input": DEFAULT_KEY, "layer's output": "layer_output"}
    try:
        last = find_key(model, "layer_output").module
    except ModelError:
        return {"FFN's input": DEFAULT_KEY}
    children = model.get_submodule(last).named_children()
    attention = [name for name, module in children if "Attention" in type(module).__name__]
    if attention:
        places["attention's output"] = f"{last}.{attention[0]}:output"
    layers, _, number = last.rpartition(".")
    if number.isdecimal() and int(number) > 0:
        places["output of the layer before"] = f"{layers}.{int(number) - 1}:output"
    paths = {id(module): name for name, module in model.named_modules()}
    blocks = decoder_of(model).children()
    norms = [module for module in blocks if "Norm" in type(module).__name__]
    if norms:
        places["head's input"] = f"{paths[id(norms[-1])]}:output"
    return places


def _groups(store: Datastore) -> Iterator[list[TextWindow]]:
    group: list[TextWindow] = []
    for window in windows_of(store.contexts, store.manifest.windows):
        group.append(window)
        if window.first_entry + window.entries - group[0].first_entry >= FILE_ENTRIES:
            yield group
            group = []
    if group:
        yield group


def place_keys(
    model: nn.Module, store: Datastore, locations: list[KeyLocation], group: list[TextWindow]
) -> dict[str, Array]:
    """The keys of some windows at each place, by the place's number."""
    device = input_device(model)
    start, end = group[0].first_entry, group[-1].first_entry + group[-1].entries
    keys: dict[str, Array] = {}
    for batch in batches(group, tokens_of_pass(model)):
        inputs = windows_batch(store.tokens, batch, device)
        for number, states in enumerate(states_at(model, locations, inputs)):
            numbers = states.float().cpu().numpy()
            place = keys.setdefault(
                str(number), np.empty((end - start, numbers.shape[-1]), np.float32)
            )
            for row, window in enumerate(batch):
                first = window.first_entry - start
                place[first : first + window.entries] = numbers[row, window.skip : window.size]
    return keys
