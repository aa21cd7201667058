"""From a dataset of the Hugging Face Hub to rows, streamed by the optional library `datasets`.

Knows the syntax `hf:DATASET[:CONFIG[:SPLIT]]`. It does not know what a document is, and passes
nothing over: a dataset is read to its end or is an error.
"""

import importlib
import itertools
from collections.abc import Iterator, Mapping
from types import ModuleType

from knn_logits.corpus.rows import (
    Row,
    column_row,
    display_name,
    field_option,
    first_line,
    lifted,
    listed,
)
from knn_logits.errors import CorpusError, MissingDependencyError

HUB_PREFIX = "hf:"


def parse_hub_name(name: str) -> tuple[str, str | None, str]:
    """Split `hf:DATASET[:CONFIG[:SPLIT]]` into dataset, configuration and split.

    An empty configuration, as in `hf:org/name::test`, is the default one; the default split is
    `train`.

    Raises:
        CorpusError: no dataset is named.
    """
    dataset, _, rest = name.removeprefix(HUB_PREFIX).partition(":")
    config, _, split = rest.partition(":")
    if not dataset.strip():
        raise CorpusError(f"{display_name(name)!r} names no dataset; write hf:DATASET:CONFIG:SPLIT")
    return dataset, config or None, split or "train"


def load_datasets(name: str) -> ModuleType:
    """Import the optional library `datasets`, needed to read `name`.

    Raises:
        MissingDependencyError: it is not installed.
    """
    message = f'{display_name(name)} needs datasets: pip install "knn-logits[datasets]"'
    try:
        module = importlib.import_module("datasets")
    except ImportError as error:
        raise MissingDependencyError(message) from error
    if not hasattr(module, "load_dataset"):  # a folder of that name, taken for the package
        raise MissingDependencyError(message)
    return module


def read_hub(name: str, keys: tuple[str, ...]) -> Iterator[Row]:
    """Stream the rows of `hf:DATASET[:CONFIG[:SPLIT]]`.

    Raises:
        CorpusError: the dataset cannot be loaded, breaks off, or lacks a column.
        MissingDependencyError: the library `datasets` is not installed.
    """
    module = load_datasets(name)
    dataset, config, split = parse_hub_name(name)
    shown = display_name(name)
    rows: Iterator[Mapping[str, object]] | None = None
    for number in itertools.count(1):
        # Loading scripts, servers and decoders raise whatever they like. Nothing is passed over
        # here: a broken connection would quietly cost most of the corpus.
        try:
            if rows is None:
                rows = iter(module.load_dataset(dataset, config, split=split, streaming=True))
            values = next(rows, None)
        except Exception as error:
            raise CorpusError(
                f"{shown}: {type(error).__name__}: {first_line(error)}; check the connection and "
                "the name, hf:DATASET:CONFIG:SPLIT (hf:DATASET::SPLIT: the default configuration)"
            ) from error
        if values is None:
            return
        values = lifted({**values}, keys)
        for key in keys:
            if key not in values:
                raise CorpusError(
                    f'{shown}: no column "{key}" among {listed(values)}; name the one that '
                    f"holds it with {field_option(key, keys)}, or choose another configuration"
                )
        yield column_row(values, keys, f"{shown}:{number}", f"{shown}, row {number}")
