"""`knn-logits cluster STORE --clusters N`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import open_datastore, prepare
from knn_logits.cli.terminal import Bars, interruptible, print_json, say


def cluster(
    store: options.Store,
    clusters: Annotated[
        int,
        typer.Option(
            "--clusters",
            min=1,
            help="Number of clusters; a hundredth of the entries is a good number.",
        ),
    ],
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="Number of keys that k-means learns from.")
    ] = None,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Group the entries of a datastore into clusters, which --retomaton then follows as well."""
    from knn_logits.building.clustering import cluster as make_clusters

    prepare(threads, seed)
    started = time.monotonic()
    datastore = open_datastore(store)
    with Bars() as bars, interruptible("the datastore is as it was"):
        done = make_clusters(
            datastore, clusters, sample=sample, seed=seed, threads=threads, progress=bars
        )
    seconds = time.monotonic() - started
    if json:
        print_json({"clusters": clusters, "entries": len(done), "seconds": round(seconds, 3)})
        return
    say(f"{done.folder}: {len(done):,} entries in {clusters:,} clusters in {seconds:.0f} s")
