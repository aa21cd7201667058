"""`knn-logits push STORE NAME`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from knn_logits.cli import options
from knn_logits.cli.common import interruptible, open_datastore, prepare, print_json, say


def push(
    store: options.Store,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="org/name on the Hub, made if it is not there.")
    ],
    private: Annotated[
        bool | None,
        typer.Option("--private/--public", help="Who may see a new repository."),
    ] = None,
    keys: Annotated[
        bool,
        typer.Option("--keys/--no-keys", help="Publish the keys, or text and index only."),
    ] = True,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, made if it is not there.")
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            "--report", metavar="FOLDER", help="What `eval --report` wrote, for the card."
        ),
    ] = None,
    message: Annotated[str | None, typer.Option("--message", help="Of the commit.")] = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Publish a datastore on the Hub, with a card."""
    from knn_logits.hub.push import push_to_hub

    prepare(None)
    started = time.monotonic()
    datastore = open_datastore(store)
    with interruptible("run the same command again; what was sent is not sent again"):
        done = push_to_hub(
            datastore,
            name,
            private=private,
            keys=keys,
            revision=revision,
            report=report,
            message=message,
            dry_run=dry_run,
        )
    if json:
        print_json(
            {
                "repo": done.repo,
                "url": done.url,
                "revision": done.commit,
                "bytes": done.bytes,
                "files": [{"name": file, "bytes": size} for file, size in done.files],
                "dry_run": dry_run,
                "seconds": round(time.monotonic() - started, 3),
            }
        )
        return
    for file, size in done.files if dry_run else ():
        say(f"{file:24} {size / 1e6:12,.3f} MB")
    verb = "would be sent to" if dry_run else "sent to"
    commit = f", revision {done.commit}" if done.commit else ""
    say(f"{len(done.files)} files, {done.bytes / 1e6:,.1f} MB {verb} {done.url}{commit}")
