"""Exchanges datastores with the Hub: `pull` and `push`."""

from __future__ import annotations

from knn_logits.cli.bars import AGAIN, Bars
from knn_logits.cli.loading import open_datastore, prepare
from knn_logits.cli.options import Json, Store, argument, command
from knn_logits.cli.terminal import answer
from knn_logits.settings.declaration import setting


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
    json: Json = False,
) -> None:
    """Download a datastore from the Hub."""
    from knn_logits.hub.pull import pull as pull_datastore

    prepare()
    with Bars(AGAIN) as bars:
        done = pull_datastore(name, revision=revision, keys=keys, out=out, progress=bars)
    content = {
        "repo": done.name.repo,
        "revision": done.name.revision,
        "folder": str(done.folder),
        "bytes": done.bytes,
        "bytes_fetched": done.fetched,
    }
    line = f"{done.name}: {done.fetched / 1e6:,.1f} of {done.bytes / 1e6:,.1f} MB fetched in "
    line += f"{bars.seconds:.1f} s"
    line += f", {done.left / 1e6:,.1f} MB left on the Hub" if done.left else ""
    answer(json, content, f"{line}; {done.folder}", seconds=bars.seconds)


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
    json: Json = False,
) -> None:
    """Publish a datastore on the Hub, with a card."""
    from knn_logits.hub.push import push_to_hub

    prepare()
    datastore = open_datastore(store)
    with Bars("run the same command again to resume; uploaded files are not sent again") as bars:
        done = push_to_hub(
            datastore, name, private=private, keys=keys, revision=revision, message=message
        )
    content = {
        "repo": done.repo,
        "url": done.url,
        "revision": done.commit,
        "bytes": done.bytes,
        "files": [{"name": file, "bytes": size} for file, size in done.files],
    }
    line = f"{len(done.files)} files, {done.bytes / 1e6:,.1f} MB sent to {done.url}, "
    answer(json, content, f"{line}revision {done.commit}", seconds=bars.seconds)
