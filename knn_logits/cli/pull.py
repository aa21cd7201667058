"""`knn-logits pull NAME`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import prepare
from knn_logits.cli.terminal import Bars, interruptible, print_json, say


def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="org/name[@revision] on the Hub.")],
    revision: options.Revision = None,
    keys: Annotated[
        bool | None,
        typer.Option(
            "--keys/--no-keys",
            help="Whether to fetch the keys; by default only if the index needs them.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Copy the datastore to a new folder, to change it."
        ),
    ] = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Fetch a datastore from the Hub."""
    from knn_logits.hub.pull import pull as pull_datastore

    prepare(None)
    started = time.monotonic()
    with Bars(quiet=True) as bars, interruptible("run the same command again, and it goes on here"):
        done = pull_datastore(
            name, revision=revision, keys=keys, out=out, dry_run=dry_run, progress=bars
        )
    seconds = time.monotonic() - started
    if json:
        print_json(
            {
                "repo": done.name.repo,
                "revision": done.name.revision,
                "folder": str(done.folder),
                "bytes": done.bytes(),
                "bytes_fetched": done.bytes("fetched", "wanted"),
                "files": [
                    {"name": file, "bytes": size, "state": state}
                    for file, size, state in done.files
                ],
                "dry_run": dry_run,
                "seconds": round(seconds, 3),
            }
        )
        return
    for file, size, state in done.files if dry_run else ():
        say(f"{file:24} {size / 1e6:12,.3f} MB  {state}")
    arrived = done.bytes("fetched", "wanted") / 1e6
    verb = "would be fetched" if dry_run else f"fetched in {seconds:.1f} s"
    left = done.bytes("left") / 1e6
    say(
        f"{done.name}: {arrived:,.1f} of {done.bytes() / 1e6:,.1f} MB {verb}"
        + (f", {left:,.1f} MB left on the Hub" if left else "")
        + ("" if dry_run else f"; {done.folder}")
    )
