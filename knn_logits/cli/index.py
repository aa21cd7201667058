"""`knn-logits index STORE`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import open_datastore, prepare
from knn_logits.cli.terminal import Bars, interruptible, print_json, say
from knn_logits.cli.tried import say_tried, tried_as_json
from knn_logits.cli.units import bytes_of
from knn_logits.errors import ConfigError
from knn_logits.settings.config import IndexConfig, check_metric


def index(
    store: options.Store,
    index: options.Index = "auto",
    metric: options.Metric = None,
    nprobe: options.Nprobe = None,
    budget: options.Budget = None,
    target_recall: options.TargetRecall = None,
    threads: options.Threads = None,
    native_index: options.NativeIndex = False,
    ray: options.Ray = None,
    suffixes: Annotated[
        bool,
        typer.Option(
            "--suffixes",
            help="Make the suffix index of the text, for --infini-gram, and leave the other as it "
            "is.",
        ),
    ] = False,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Replace the index of a datastore by one of another kind or metric, or make a suffix index."""
    if suffixes:
        others = (metric, nprobe, budget, target_recall, ray)
        if index != "auto" or native_index or any(one is not None for one in others):
            raise ConfigError(
                "--suffixes makes only the index of the text: leave --index, --metric, --nprobe, "
                "--budget, --target-recall, --native-index and --ray out"
            )
        _suffixes(store, json)
        return
    config = IndexConfig(
        index,
        check_metric(metric) if metric is not None else None,
        nprobe=nprobe,
        seed=seed,
        native=native_index,
        budget=None if budget is None else bytes_of(budget),
        target_recall=target_recall,
    )
    from knn_logits.building.indexing import build_index
    from knn_logits.store.hub_client import hub_name

    prepare(threads, seed)
    started = time.monotonic()
    with Bars() as bars, interruptible("the datastore keeps its old index"):
        # Its old index may be missing or damaged.
        folder = Path(store) if hub_name(store) is None else open_datastore(store).folder
        done = build_index(folder, config, threads=threads, ray=ray, progress=bars)
    seconds = time.monotonic() - started
    record = done.manifest.index
    if json:
        print_json(
            {
                "index": record.factory,
                "nprobe": record.nprobe,
                "recall": record.recall.value if record.recall else 1.0,
                "entries": len(done),
                "seconds": round(seconds, 3),
                "tried": tried_as_json(record),
            }
        )
        return
    say_tried(record)
    found = f", recall@{record.recall.at} {record.recall.value:.3f}" if record.recall else ""
    say(f"{done.folder}: index {record.factory}{found} in {seconds:.0f} s")


def _suffixes(store: str, json: bool) -> None:
    from knn_logits.building.indexing import build_suffixes

    started = time.monotonic()
    datastore = open_datastore(store)
    with Bars() as bars, interruptible("the datastore is as it was"):
        done = build_suffixes(datastore, progress=bars)
    record = done.manifest.file("suffixes")
    assert record is not None
    seconds = time.monotonic() - started
    tokens = done.manifest.tokens
    if json:
        print_json(
            {
                "suffixes": True,
                "tokens": tokens,
                "bytes": record.bytes,
                "seconds": round(seconds, 3),
            }
        )
        return
    say(f"{done.folder}: suffix index of {tokens:,} tokens in {seconds:.0f} s")
