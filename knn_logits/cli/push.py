"""`knn-logits push STORE NAME`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import open_datastore, prepare
from knn_logits.cli.terminal import interruptible, print_json, say
from knn_logits.errors import ConfigError

if TYPE_CHECKING:
    from knn_logits.hub.repositories import Repository


def push(
    store: options.Store,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="org/name on the Hub; it is made if it is missing."),
    ],
    private: Annotated[
        bool | None,
        typer.Option("--private/--public", help="Whether everybody may see a new repository."),
    ] = None,
    keys: Annotated[
        bool,
        typer.Option("--keys/--no-keys", help="Publish the keys, or only the text and the index."),
    ] = True,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch; it is made if it is missing.")
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            "--report", metavar="FOLDER", help="Report that `eval --report` wrote, for the card."
        ),
    ] = None,
    message: Annotated[str | None, typer.Option("--message", help="Message of the commit.")] = None,
    custom_generate: Annotated[
        str | None,
        typer.Option(
            "--custom-generate",
            metavar="ORG/NAME",
            help="Also publish a repository for `generate(custom_generate=...)` of transformers.",
        ),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            "--space", metavar="ORG/NAME", help="Also publish a Space with the page; needs --model."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="The model that the Space loads."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="FOLDER",
            help="Write what --custom-generate and --space publish to a folder as well.",
        ),
    ] = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Publish a datastore on the Hub, with a card."""
    from knn_logits.hub.push import push_to_hub

    if (space is None) != (model is None):
        raise ConfigError("--space and --model belong together: the Space loads that model")
    if keep is not None and custom_generate is None and space is None:
        raise ConfigError("--keep writes what --custom-generate or --space publish: give one")
    # Wrong names and missing packages are found before anything is sent.
    _beside(name, None, custom_generate, space, model)
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
        beside = _beside(name, done.commit, custom_generate, space, model)
        for one in beside:
            if keep is not None:
                one.write(keep / one.kind)
            if not dry_run:
                one.push(private=private, message=message or "")
    if json:
        print_json(
            {
                "repo": done.repo,
                "url": done.url,
                "revision": done.commit,
                "bytes": done.bytes,
                "files": [{"name": file, "bytes": size} for file, size in done.files],
                "beside": [
                    {"repo": one.repo, "kind": one.kind, "url": one.url, "files": len(one.files)}
                    for one in beside
                ],
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
    for one in beside:
        say(f"{len(one.files)} files {verb} {one.url}")
    if keep is not None:
        say(f"written to {keep} as well")


def _beside(
    name: str,
    commit: str | None,
    custom_generate: str | None,
    space: str | None,
    model: str | None,
) -> list[Repository]:
    """What is published beside the datastore."""
    from knn_logits.hub import repositories

    found = []
    if custom_generate is not None:
        found.append(repositories.custom_generate(custom_generate, name, commit))
    if space is not None and model is not None:
        found.append(repositories.space(space, model, [name]))
    return found
