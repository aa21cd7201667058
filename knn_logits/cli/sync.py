"""`knn-logits sync MODEL STORE FOLDER...`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import load_model, open_datastore, prepare, present, reads_pairs
from knn_logits.cli.reading import Fields, Told, documents_of
from knn_logits.cli.terminal import Bars, interruptible, print_json, say, tell
from knn_logits.printable import one_line

if TYPE_CHECKING:
    from knn_logits.building.syncing import Sync

# So many of the new, changed and removed documents are named.
_NAMED = 5
# These reasons mean that a file is empty now. A file skipped for other reasons may still have text.
_EMPTY = "empty"
_ROW = re.compile(r", (?:line|row|item) (\d+)$")


def sync(
    model: options.Model,
    store: options.Store,
    folder: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER...",
            help="Everything that the datastore is to hold, as it was given to build.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be added, replaced and removed.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Continue even if none of the datastore's documents is in the folder."
        ),
    ] = False,
    source_field: options.SourceField = "source",
    target_field: options.TargetField = "target",
    text_field: options.TextField = "text",
    id_field: options.IdField = "id",
    title_field: options.TitleField = "title",
    encoding: options.Encoding = None,
    batch_tokens: options.BatchTokens = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Update a datastore to a folder: add new, replace changed and remove missing documents.

    Documents are compared by their content, so the cost is that of the new text.
    """
    from knn_logits.building.syncing import sync_documents

    started = time.monotonic()
    fields = Fields(text_field, id_field, title_field, source_field, target_field, encoding, strict)
    told = Told()
    datastore = open_datastore(store)
    with Bars() as bars, interruptible("run the same command again, and it goes on here"):
        documents = documents_of(folder, fields, told, bars, pairs=reads_pairs(model))
        prepare(threads)
        loaded, tokenizer = load_model(model, device, dtype, resumes=datastore.folder)
        done = sync_documents(
            loaded,
            tokenizer,
            datastore,
            documents,
            dry_run=dry_run,
            force=force,
            keep=_unreadable(folder, told.skipped),
            on_plan=lambda plan: tell(_said(plan), style=None),
            batch_tokens=batch_tokens,
            threads=threads,
            progress=bars,
        )
    seconds = time.monotonic() - started
    if done.kept:
        tell(
            f"{_some(done.kept)} could not be read, so the datastore keeps the text that it has of "
            f"{'it' if len(done.kept) == 1 else 'them'}"
        )
    entries, left = present(done.datastore)
    if json:
        print_json(
            {
                **done.to_dict(),
                "skipped": len(told.skipped),
                "entries": entries,
                "documents": left,
                "seconds": round(seconds, 3),
            }
        )
        return
    if dry_run:
        _list(done)
        say(f"{_said(done)}; nothing was written")
    else:
        say(f"{done.datastore.folder}: {_said(done)}, in {seconds:.0f} s")
        if done.removed or done.changed:
            say(f"`knn-logits compact {store}` deletes the removed text from the disk")
    if told.summary:
        say(told.summary)


def _said(plan: Sync) -> str:
    return (
        f"{len(plan.added):,} added, {len(plan.changed):,} changed, {len(plan.removed):,} removed, "
        f"{plan.unchanged:,} unchanged; keys of {plan.tokens:,} tokens"
    )


def _list(plan: Sync) -> None:
    for name, ids in (("add", plan.added), ("replace", plan.changed), ("remove", plan.removed)):
        for id in ids:
            say(f"{name:8} {one_line(id)}")


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _NAMED:,} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more


def _unreadable(
    folders: Sequence[str], skipped: Sequence[tuple[str, str]]
) -> Callable[[str], bool]:
    """Makes a test whether a document's id belongs to a file that could not be read.

    Args:
        folders: The folders as given on the command line.
        skipped: The skipped files, a list that fills while the folders are read.
    """

    def unreadable(id: str) -> bool:
        return any(_holds(name, id) for name in names())

    def names() -> list[str]:
        # The list is complete once everything is read.
        if len(found) != len(skipped):
            found[:] = [
                "" if reason == _EMPTY else _relative(folders, name) for name, reason in skipped
            ]
        return [name for name in found if name]

    found: list[str] = []
    return unreadable


def _relative(folders: Sequence[str], shown: str) -> str:
    """Derives the id of a file's document from the file's name in messages."""
    row = _ROW.search(shown)
    path = Path(shown[: row.start()] if row else shown)
    inside = (path.relative_to(one) for one in folders if path.is_relative_to(one))
    name = next(inside, Path(path.name))
    # The file itself was given. A given folder holds everything.
    text = path.name if name == Path() and not path.is_dir() else name.as_posix()
    return f"{text}:{row[1]}" if row else text


def _holds(name: str, id: str) -> bool:
    return name == "." or id == name or id.startswith((f"{name}/", f"{name}:", f"{name}#"))
