"""`knn-logits remove STORE --document ID` and `knn-logits compact STORE`."""

from __future__ import annotations

from typing import Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import open_datastore, prepare, present
from knn_logits.cli.terminal import Bars, interruptible, print_json, say


def remove(
    store: options.Store,
    document: Annotated[
        list[str],
        typer.Option(
            "--document",
            metavar="ID|TITLE|URI",
            help="A document's id, title or uri; may be repeated.",
        ),
    ],
    json: options.Json = False,
) -> None:
    """Remove documents, so that no search finds them any more."""
    from knn_logits.building.removing import remove_documents

    prepare(None)
    done = remove_documents(open_datastore(store), document)
    entries, documents = present(done)
    if json:
        removed = len(done.manifest.removed)
        print_json({"entries": entries, "documents": documents, "removed": removed})
        return
    say(
        f"{done.folder}: {entries:,} entries of {documents:,} documents are left; `knn-logits "
        f"compact {store}` deletes the rest from the disk"
    )


def compact(
    store: options.Store, threads: options.Threads = None, json: options.Json = False
) -> None:
    """Rewrite a datastore without its removed documents, and delete the old files."""
    from knn_logits.building.removing import compact as compact_store

    prepare(threads)
    datastore = open_datastore(store)
    with Bars() as bars, interruptible("the datastore is as it was; run the same command again"):
        done = compact_store(datastore, threads=threads, progress=bars)
    manifest = done.manifest
    size = sum(record.bytes for record in manifest.files)
    if json:
        print_json({"entries": manifest.entries, "documents": manifest.documents, "bytes": size})
        return
    say(
        f"{done.folder}: {manifest.entries:,} entries of {manifest.documents:,} documents, "
        f"{size / 1e6:,.1f} MB"
    )
