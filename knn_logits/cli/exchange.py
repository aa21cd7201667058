"""Brings datastores from elsewhere and publishes them: `import`, `pull` and `push`."""

from __future__ import annotations

from typing import Any

from knn_logits.cli.bars import AGAIN, Bars
from knn_logits.cli.build import StoreOptions
from knn_logits.cli.loading import Run, index_words, open_datastore, prepare
from knn_logits.cli.options import Model, Store, argument, command
from knn_logits.cli.terminal import picked, say
from knn_logits.settings.config import WindowConfig
from knn_logits.settings.declaration import setting


@command
def import_store(
    model: Model,
    window: WindowConfig,
    output: StoreOptions,
    run: Run,
    source: str = argument(
        "SOURCE",
        "Folder with the files of knn-transformers, knnlm or knn-models. If it contains several "
        "datastores, pass the file of values.",
    ),
    out: str = setting(..., "Folder to write.", metavar="STORE"),
) -> None:
    """Import a datastore of an earlier system.

    --window and --stride set the scoring windows.
    """
    from knn_logits.lab.importing import import_datastore

    with Bars(AGAIN) as bars:
        loaded, tokenizer = run.load(model)
        how: dict[str, Any] = {**picked(output, "key", "overwrite", "license"), "window": window}
        how |= {"source_text": output.source, "progress": bars}
        store = import_datastore(loaded, tokenizer, source, out, **how)
    say(
        f"{store.folder}: {store.manifest.entries:,} entries, {index_words(store)} in "
        f"{bars.seconds:.0f} s"
    )


@command
def pull(
    name: str = argument("NAME", "org/name[@revision] on the Hub."),
    keys: bool | None = setting(
        None,
        "Whether to fetch the keys; by default only if the index needs them.",
        option="--keys/--no-keys",
    ),
    out: str | None = setting(
        None, "Copy the datastore to a new, writable folder.", metavar="FOLDER"
    ),
) -> None:
    """Download a datastore from the Hub."""
    from knn_logits.hub.pull import pull as pull_datastore

    prepare()
    with Bars(AGAIN) as bars:
        done = pull_datastore(name, keys=keys, out=out, progress=bars)
    line = f"{done.name}: {done.fetched / 1e6:,.1f} of {done.bytes / 1e6:,.1f} MB fetched in "
    line += f"{bars.seconds:.1f} s"
    say(f"{line}; {done.folder}")


@command
def push(
    store: Store,
    name: str = argument("NAME", "org/name[@branch] on the Hub; created if missing."),
    private: bool | None = setting(
        None, "Visibility of a new repository.", option="--private/--public"
    ),
    keys: bool = setting(
        True, "Publish the keys, or only the text and the index.", option="--keys/--no-keys"
    ),
) -> None:
    """Publish a datastore on the Hub, with a card."""
    from knn_logits.hub.push import push_to_hub

    prepare()
    datastore = open_datastore(store)
    with Bars("run the same command again to resume; uploaded files are not sent again"):
        done = push_to_hub(datastore, name, private=private, keys=keys)
    say(f"{done.bytes / 1e6:,.1f} MB published at {done.url}, revision {done.commit}")
