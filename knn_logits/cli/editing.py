"""Changes a datastore: `add`, `sync`, `remove` and `index`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from knn_logits.cli.bars import AGAIN, Bars
from knn_logits.cli.corpus_options import Corpus, CorpusOptions, Report
from knn_logits.cli.loading import (
    Run,
    SeededThreads,
    Threads,
    figures_of,
    folder_of,
    index_words,
    open_datastore,
    reads_pairs,
)
from knn_logits.cli.options import Model, Store, Without, argument, command
from knn_logits.cli.terminal import in_documents, say, tell
from knn_logits.errors import ConfigError
from knn_logits.printable import first_few
from knn_logits.settings.config import IndexConfig, PassConfig
from knn_logits.settings.declaration import setting

# These reasons mean that a file is empty now. A file skipped for other reasons may still have text.
_EMPTY = "empty"
_ROW = re.compile(r", (?:line|row|item) \d+$")

Passes = Annotated[PassConfig, Without(("window", "concatenate"))]


@command
def add(
    model: Model, store: Store, corpus: Corpus, fields: CorpusOptions, passes: Passes, run: Run
) -> None:
    """Add documents without recomputing existing keys."""
    from knn_logits.building.updating import add_documents

    report = Report()
    datastore = open_datastore(store)
    before = datastore.manifest
    with Bars(AGAIN) as bars:
        documents = fields.documents(corpus, report, bars, pairs=reads_pairs(model))
        loaded, tokenizer = run.load(model, datastore.folder)
        how = {**passes.keywords(), "progress": bars}
        done = add_documents(loaded, tokenizer, datastore, documents, **how)
    if done.manifest == before:
        say(f"{done.folder}: nothing was added; `knn-logits sync` replaces changed documents")
    else:
        added = in_documents(done.manifest.documents - before.documents)
        left = figures_of(done)["entries"]
        say(
            f"{done.folder}: {added} added in {bars.seconds:.0f} s, now {left:,} entries, "
            f"{index_words(done)}"
        )
    report.sum_up()


@command
def sync(
    model: Model,
    store: Store,
    fields: CorpusOptions,
    passes: Passes,
    run: Run,
    folder: list[str] = argument("FOLDER...", "The complete corpus, as passed to build."),
    force: bool = setting(
        False, "Proceed even if the folder contains none of the datastore's documents."
    ),
) -> None:
    """Synchronize a datastore with a folder of documents.

    Adds new documents, replaces changed ones, and removes missing ones.

    Documents are compared by content, so only new text costs time.
    """
    from knn_logits.building.updating import sync_documents

    report = Report()
    datastore = open_datastore(store)
    with Bars(AGAIN) as bars:
        documents = fields.documents(folder, report, bars, pairs=reads_pairs(model))
        loaded, tokenizer = run.load(model, datastore.folder)
        how = {**passes.keywords(), "progress": bars}
        how |= {"force": force, "keep": _unreadable(folder, report.skipped)}
        done = sync_documents(loaded, tokenizer, datastore, documents, **how)
    if done.kept:
        tell(
            f"{first_few(done.kept)} could not be read, so the datastore keeps its existing text "
            f"of {'it' if len(done.kept) == 1 else 'them'}"
        )
    say(
        f"{done.datastore.folder}: {len(done.added):,} added, {len(done.changed):,} changed, "
        f"{len(done.removed):,} removed, {done.unchanged:,} unchanged; keys of {done.tokens:,} "
        f"tokens in {bars.seconds:.0f} s, {index_words(done.datastore)}"
    )
    if done.removed or done.changed:
        say(f"`knn-logits remove {store}` deletes the removed text from the disk")
    report.sum_up()


def _unreadable(
    folders: Sequence[str], skipped: Sequence[tuple[str, str]]
) -> Callable[[str], bool]:
    """Makes a test whether a document's id belongs to a file that could not be read."""

    def unreadable(id: str) -> bool:
        # The list is complete once everything is read.
        names = [_relative(folders, name) for name, reason in skipped if reason != _EMPTY]
        return any(
            name in (".", id) or id.startswith((f"{name}/", f"{name}:", f"{name}#"))
            for name in names
        )

    return unreadable


def _relative(folders: Sequence[str], shown: str) -> str:
    """Derives the id of a file's document from the file's name in messages."""
    path = Path(_ROW.sub("", shown))
    inside = (path.relative_to(folder) for folder in folders if path.is_relative_to(folder))
    name = next(inside, Path(path.name))
    # The file itself was given. A given folder holds everything.
    return path.name if name == Path() and not path.is_dir() else name.as_posix()


@command
def remove(
    store: Store,
    run: Threads,
    document: tuple[str, ...] = setting(
        (),
        "A document's id, title or uri; repeatable. Without it, the documents that `sync` removed.",
        metavar="ID|TITLE|URI",
    ),
) -> None:
    """Remove documents from all searches, and delete them from disk."""
    from knn_logits.building.removing import compact, remove_documents

    run.prepare()
    done = open_datastore(store)
    if document:
        done = remove_documents(done, document)
    removed, on_demand = len(done.manifest.removed), done.manifest.on_demand
    kept = "" if done.has_keys or on_demand else "; it has no keys, so their text stays"
    if not kept:
        advice = f"no search finds the documents; `knn-logits remove {store}` deletes their text"
        with Bars(advice) as bars:
            done = compact(done, progress=bars)
    figures = figures_of(done)
    say(
        f"{done.folder}: {in_documents(removed)} removed, {figures['entries']:,} entries of "
        f"{in_documents(figures['documents'])} are left{kept}"
    )


@command
def index(
    store: Store,
    index: IndexConfig,
    run: SeededThreads,
    suffixes: bool = setting(False, "Build only the suffix index of the text, for --infini-gram."),
    clusters: int | None = setting(
        None,
        "Only cluster the entries, for --retomaton; 1% of the entries is a good number.",
        least=1,
    ),
) -> None:
    """Replace the index, or index suffixes or clusters."""
    if (suffixes or clusters) and index != IndexConfig():
        raise ConfigError(
            "--suffixes and --clusters keep the index: use them without --index, --metric and "
            "--nprobe"
        )
    from knn_logits.building.indexing import build_index, build_suffixes, cluster

    run.prepare()
    folder = folder_of(store)
    with Bars("the datastore keeps its old index") as bars:
        if suffixes:
            done = build_suffixes(folder, progress=bars)
        if clusters is not None:
            done = cluster(folder, clusters, seed=run.seed, progress=bars)
        if not suffixes and clusters is None:
            done = build_index(folder, replace(index, seed=run.seed), progress=bars)
    made = [f"suffix index of {done.manifest.tokens:,} tokens"] if suffixes else []
    made += [] if clusters is None else [f"{clusters:,} clusters"]
    say(f"{done.folder}: {', '.join(made) or index_words(done)} in {bars.seconds:.0f} s")
