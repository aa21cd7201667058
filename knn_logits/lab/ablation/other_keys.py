"""Computes the keys of a datastore's entries at other places of the model, all in one pass.

A datastore for each place would run the model over the corpus once for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from knn_logits.arrays import Array
from knn_logits.engine.forward import evaluating, input_device, states_at, windows_batch
from knn_logits.engine.keys import default_batch_tokens
from knn_logits.engine.location import KeyLocation, find_key
from knn_logits.engine.windows import TextWindow, batches, plan
from knn_logits.progress import Progress
from knn_logits.store.datastore import Datastore
from knn_logits.store.files import write_arrays
from knn_logits.store.reading import read_arrays

# A file has the keys of about so many entries.
_ENTRIES = 8192


def other_keys(
    model: nn.Module, store: Datastore, keys: Sequence[str], folder: Path, progress: Progress
) -> list[Path]:
    """Writes the keys of all entries at some places of the model, in float32.

    Files that are there already are kept, so an interrupted run goes on after the last one.

    Args:
        model: The model of the datastore.
        store: The datastore, whose text is read.
        keys: The places, in the form that `find_key` takes.
        folder: The folder of the files.
        progress: A callback for the progress.

    Returns:
        The files, in the order of the entries. `read_keys` reads them.
    """
    locations = [find_key(model, key) for key in keys]
    found = []
    with evaluating(model):
        for number, group in enumerate(_groups(store)):
            progress("keys of other places", group[0].first_entry, len(store))
            path = folder / f"keys-{number:05d}.safetensors"
            if not path.exists():
                write_arrays(path, _keys(model, store, locations, group), {})
            found.append(path)
    progress("keys of other places", len(store), len(store))
    return found


def read_keys(files: Sequence[Path], number: int) -> Iterator[Array]:
    """Yields the keys of one place, float32 [rows, dim] at a time, in the entries' order.

    Args:
        files: The result of `other_keys`.
        number: The number of the place in `keys`.
    """
    for path in files:
        yield read_arrays(path)[0][str(number)]


def _groups(store: Datastore) -> Iterator[list[TextWindow]]:
    contexts, own = store.contexts, store.manifest.windows
    group: list[TextWindow] = []
    for window in plan(contexts.first, contexts.length, own.window, own.stride):
        group.append(window)
        if window.first_entry + window.entries - group[0].first_entry >= _ENTRIES:
            yield group
            group = []
    if group:
        yield group


def _keys(
    model: nn.Module, store: Datastore, locations: list[KeyLocation], group: list[TextWindow]
) -> dict[str, Array]:
    device = input_device(model)
    start, end = group[0].first_entry, group[-1].first_entry + group[-1].entries
    found: dict[str, Array] = {}
    for batch in batches(group, default_batch_tokens(device)):
        inputs = windows_batch(store.tokens, batch, device)
        for number, states in enumerate(states_at(model, locations, inputs)):
            numbers = states.float().cpu().numpy()
            if str(number) not in found:
                found[str(number)] = np.empty((end - start, numbers.shape[-1]), np.float32)
            for row, window in enumerate(batch):
                first = window.first_entry - start
                found[str(number)][first : first + window.entries] = numbers[
                    row, window.skip : window.size
                ]
    return found
