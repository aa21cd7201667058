"""`knn-logits merge STORE --keep SHARE`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import open_datastore, prepare
from knn_logits.cli.terminal import Bars, interruptible, print_json, say


def merge(
    store: options.Store,
    keep: Annotated[
        float,
        typer.Option(
            "--keep", help="Share of the entries that stay in the index; 1 undoes the merging."
        ),
    ] = 0.5,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Merge near entries of one token in one document, so that the index becomes smaller."""
    from knn_logits.building.merging import merge_entries

    prepare(threads)
    started = time.monotonic()
    datastore = open_datastore(store)
    with Bars() as bars, interruptible("the datastore is as it was"):
        done = merge_entries(datastore, keep, threads=threads, progress=bars)
    seconds = time.monotonic() - started
    record, kept = done.manifest.index, len(done) - len(done.merged_away)
    if json:
        print_json(
            {
                "entries": len(done),
                "kept": kept,
                "index": record.factory,
                "nprobe": record.nprobe,
                "recall": record.recall.value if record.recall else 1.0,
                "seconds": round(seconds, 3),
            }
        )
        return
    say(
        f"{done.folder}: {kept:,} of {len(done):,} entries are in the index, and stand for the "
        f"others ({seconds:.0f} s)"
    )
