"""`knn-logits verify STORE`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import open_datastore, prepare
from knn_logits.cli.terminal import Bars, interruptible, print_json, say, tell


def verify(
    store: options.Store,
    full: Annotated[
        bool, typer.Option("--full", help="Read every byte, even of files verified before.")
    ] = False,
    native_index: options.NativeIndex = False,
    json: options.Json = False,
) -> None:
    """Check a datastore: hashes, shapes, ranges, and the answers of its index."""
    from knn_logits.errors import KNNLogitsError
    from knn_logits.index.opening import open_index
    from knn_logits.mixture.gates.stored import stored_gate
    from knn_logits.store import verification
    from knn_logits.store.datastore import Datastore
    from knn_logits.store.hub_client import hub_name
    from knn_logits.store.job import leftovers
    from knn_logits.store.manifest import read_manifest

    prepare(None)
    # Opening a damaged datastore fails before all damage is named, so it is not opened yet.
    folder = Path(store) if hub_name(store) is None else open_datastore(store).folder
    manifest = read_manifest(folder)
    size = sum(record.bytes for record in manifest.files)
    started = time.monotonic()
    with Bars() as bars, interruptible("nothing was changed"):
        damaged = verification.damage(folder, manifest, bars) if full else []
        if not damaged:
            try:
                datastore = Datastore(folder, progress=bars)
                if manifest.on_demand is None:
                    open_index(datastore, native=native_index)
                stored_gate(datastore)
            except KNNLogitsError as error:
                damaged = verification.damage(folder, manifest, bars) or [str(error)]
    seconds = time.monotonic() - started
    left = leftovers(folder, manifest)
    if json:
        print_json(
            {
                "ok": not damaged,
                "damaged": damaged,
                "leftovers": left,
                "entries": manifest.entries,
                "documents": manifest.documents,
                "bytes": size,
                "seconds": round(seconds, 3),
            }
        )
    elif not damaged:
        say(f"{folder}: whole, {size / 1e6:,.1f} MB in {seconds:.1f} s")
    if left:
        names = ", ".join(left[:3])
        tell(
            f"{folder} also holds files of an earlier state or an unfinished job ({names}); the "
            "next change of the datastore deletes them"
        )
    for line in damaged:
        tell(line, style=None)
    if damaged:
        raise typer.Exit(1)
