"""Exchanges datastores with the Hub: `pull` and `push`."""

from __future__ import annotations

from knn_logits.cli.bars import AGAIN, Bars
from knn_logits.cli.loading import open_datastore, prepare
from knn_logits.cli.options import Json, Store, argument, command
from knn_logits.cli.terminal import answer
from knn_logits.settings.declaration import setting

_DRY_RUN = "Show what would be transferred, with file sizes."


@command
def pull(
    name: str = argument("NAME", "org/name[@revision] on the Hub."),
    revision: str | None = setting(None, "Branch, tag or commit on the Hub."),
    keys: bool | None = setting(
        None,
        "Whether to fetch the keys; by default only if the index needs them.",
        option="--keys/--no-keys",
    ),
    out: str | None = setting(
        None, "Copy the datastore to a new, writable folder.", metavar="FOLDER"
    ),
    dry_run: bool = setting(False, _DRY_RUN),
    json: Json = False,
) -> None:
    """Download a datastore from the Hub."""
    from knn_logits.hub.pull import pull as pull_datastore

    prepare()
    with Bars(AGAIN) as bars:
        done = pull_datastore(
            name, revision=revision, keys=keys, out=out, dry_run=dry_run, progress=bars
        )
    fetched, left = done.bytes("fetched", "wanted"), done.bytes("left")
    content = {
        "repo": done.name.repo,
        "revision": done.name.revision,
        "folder": str(done.folder),
        "bytes": done.bytes(),
        "bytes_fetched": fetched,
        "files": [
            {"name": file, "bytes": size, "state": state} for file, size, state in done.files
        ],
        "dry_run": dry_run,
    }
    files = [f"{file:24} {size / 1e6:12,.3f} MB  {state}" for file, size, state in done.files]
    verb = "would be fetched" if dry_run else f"fetched in {bars.seconds:.1f} s"
    line = f"{done.name}: {fetched / 1e6:,.1f} of {done.bytes() / 1e6:,.1f} MB {verb}"
    line += f", {left / 1e6:,.1f} MB left on the Hub" if left else ""
    line += "" if dry_run else f"; {done.folder}"
    answer(json, content, *(files if dry_run else ()), line, seconds=bars.seconds)


@command
def push(
    store: Store,
    name: str = argument("NAME", "org/name on the Hub; created if missing."),
    private: bool | None = setting(
        None, "Visibility of a new repository.", option="--private/--public"
    ),
    keys: bool = setting(
        True, "Publish the keys, or only the text and the index.", option="--keys/--no-keys"
    ),
    revision: str | None = setting(None, "Branch; created if missing."),
    message: str | None = setting(None, "Commit message."),
    dry_run: bool = setting(False, _DRY_RUN),
    json: Json = False,
) -> None:
    """Publish a datastore on the Hub, with a card."""
    from knn_logits.hub.push import push_to_hub

    prepare()
    datastore = open_datastore(store)
    with Bars("run the same command again to resume; uploaded files are not sent again") as bars:
        done = push_to_hub(
            datastore, name, private=private, keys=keys, revision=revision, message=message,
            dry_run=dry_run,
        )  # fmt: skip
    content = {
        "repo": done.repo,
        "url": done.url,
        "revision": done.commit,
        "bytes": done.bytes,
        "files": [{"name": file, "bytes": size} for file, size in done.files],
        "dry_run": dry_run,
    }
    verb = "would be sent to" if dry_run else "sent to"
    commit = f", revision {done.commit}" if done.commit else ""
    lines = [f"{file:24} {size / 1e6:12,.3f} MB" for file, size in done.files if dry_run]
    lines.append(f"{len(done.files)} files, {done.bytes / 1e6:,.1f} MB {verb} {done.url}{commit}")
    answer(json, content, *lines, seconds=bars.seconds)
