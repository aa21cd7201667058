"""Streams the rows of `hf:DATASET[:CONFIG[:SPLIT]]` with the optional library `datasets`."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Mapping
from types import ModuleType

from knn_logits.corpus.rows import Row, display_name, fields_of, first_line, plain_values
from knn_logits.errors import CorpusError, MissingDependencyError

HUB_PREFIX = "hf:"


def parse_hub_name(name: str) -> tuple[str, str | None, str]:
    """Splits a name into dataset, configuration (None for the default) and split."""
    dataset, config, split, *_ = f"{name.removeprefix(HUB_PREFIX)}::".split(":", 2)
    if not dataset.strip():
        raise CorpusError(
            f"{display_name(name)!r} is not a dataset name; use hf:DATASET:CONFIG:SPLIT"
        )
    return dataset, config or None, split.rstrip(":") or "train"


def load_datasets(name: str) -> ModuleType:
    """Imports the optional library `datasets`, which reads `name`."""
    message = f'{display_name(name)} needs datasets: pip install "knn-logits[datasets]"'
    try:
        module = importlib.import_module("datasets")
    except ImportError as error:
        raise MissingDependencyError(message) from error
    if not hasattr(module, "load_dataset"):  # Python imports a folder of this name as a package
        raise MissingDependencyError(message)
    return module


def read_hub(name: str, keys: tuple[str, ...]) -> Iterator[Row]:
    """Streams the rows of a dataset. Nothing is skipped, since most of it would be lost unseen."""
    module = load_datasets(name)
    dataset, config, split = parse_hub_name(name)
    shown = display_name(name)
    rows: Iterator[Mapping[str, object]] | None = None
    for number in itertools.count(1):
        try:  # loading scripts, servers and decoders may raise any exception
            if rows is None:
                rows = iter(module.load_dataset(dataset, config, split=split, streaming=True))
            values = next(rows, None)
        except Exception as error:
            raise CorpusError(
                f"{shown}: {type(error).__name__}: {first_line(error)}; check the connection and "
                "the name, hf:DATASET:CONFIG:SPLIT (hf:DATASET::SPLIT for the default "
                "configuration)"
            ) from error
        if values is None:
            return
        where = f"{shown}, row {number}"
        try:
            fields = plain_values(fields_of({**values}, keys))
        except ValueError as error:
            raise CorpusError(f"{where}: {error}") from None
        yield Row(fields, f"{shown}:{number}", where)
