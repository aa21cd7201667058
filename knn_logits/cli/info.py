"""`knn-logits info STORE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import open_datastore
from knn_logits.cli.terminal import print_json, say
from knn_logits.printable import one_line
from knn_logits.settings.config import suffix_words

if TYPE_CHECKING:
    from knn_logits.store.datastore import Datastore
    from knn_logits.store.manifest import Manifest
    from knn_logits.store.records import LearnedRecord, SettingsRecord, WritingRecord


def info(
    store: options.Store,
    documents: Annotated[
        bool, typer.Option("--documents", help="List the documents: id, tokens, title, uri.")
    ] = False,
    search: Annotated[
        str | None,
        typer.Option(
            "--search",
            metavar="WORDS",
            help="List only documents with these words in their id, title or uri.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="The most documents to list; 0 lists all.")
    ] = 100,
    json: options.Json = False,
) -> None:
    """Show what a datastore holds and which model it belongs to."""
    datastore = open_datastore(store)
    manifest = datastore.manifest
    size = sum(record.bytes for record in manifest.files)
    gate = _kind_of_gate(datastore)
    listed = listing(datastore, search) if documents or search is not None else None
    if listed is not None and not json:
        _say_documents(listed, limit, datastore, search)
        return
    if json:
        content: dict[str, Any] = manifest.model_dump(mode="json")
        content = {
            "ok": True,
            "store": str(datastore.folder),
            "revision": datastore.revision,
            "bytes": size,
            **content,
            "settings": {**content["settings"], "tuned": manifest.settings.tuned},
            "gate": gate,
        }
        if listed is not None:
            content["found"] = len(listed)
            content["listed"] = listed[: limit or None]
        print_json(content)
        return
    recall = manifest.index.recall
    found = f", recall@{recall.at} {recall.value:.3f}" if recall else ""
    probes = f", nprobe {manifest.index.nprobe}" if manifest.index.nprobe else ""
    settings = manifest.settings
    windows = manifest.windows
    scored = "" if manifest.writing is None else "text is scored and "
    joined = ", documents joined" if windows.concatenate else ""
    for name, value in (
        ("datastore", f"{datastore.folder} ({size / 1e6:,.1f} MB)"),
        ("revision", datastore.revision),
        ("entries", f"{manifest.entries:,} of {manifest.documents:,} documents"),
        ("learned", _learned(manifest.learned)),
        (
            "removed",
            f"{len(manifest.removed)} documents, {len(datastore.removed_entries):,} entries; "
            "`knn-logits compact` deletes them from the disk"
            if manifest.removed
            else None,
        ),
        ("skipped", f"{manifest.skipped} documents" if manifest.skipped else None),
        ("model", f"{manifest.model.id} ({manifest.model.type}, {manifest.model.dtype})"),
        ("key", f"{manifest.key.module}:{manifest.key.side} ({manifest.key.name})"),
        (
            "keys",
            f"{manifest.dim} numbers in {manifest.dtype}, {manifest.metric}" + _on_demand(manifest),
        ),
        ("windows", f"{windows.window} tokens, stride {windows.stride}{joined}"),
        ("pairs", manifest.pairs),
        ("index", f"{manifest.index.factory}{probes}{found}"),
        ("merged", _merged(datastore)),
        ("suffixes", _suffixes(manifest)),
        (
            "settings",
            f"k {settings.k}, lmbda {settings.lmbda:g}, temperature {settings.temperature:g}"
            + suffix_words(settings.suffix_weight)
            + _state(settings),
        ),
        ("for writing", _writing(manifest.writing)),
        ("gate", f"{gate}; weighs the neighbors where {scored}no lmbda is given" if gate else None),
        ("source", manifest.source),
        ("license", manifest.license),
    ):
        if value is not None:
            say(f"{name:10} {one_line(str(value))}")


def _merged(datastore: Datastore) -> str | None:
    """What was merged; None where nothing was."""
    away = len(datastore.merged_away)
    if not away:
        return None
    return f"{away:,} entries are not in the index, since another one stands for each"


def listing(datastore: Datastore, search: str | None = None) -> list[dict[str, Any]]:
    """Lists documents. The parts of a large file, which share an id, make one row.

    Args:
        datastore: The datastore.
        search: Words that the id, title or uri must contain; None lists all documents.
    """
    table, removed = datastore.documents, set(datastore.manifest.removed)
    numbers = range(len(table)) if search is None else table.search(search)
    found: dict[str, dict[str, Any]] = {}
    for number in numbers:
        if number in removed:
            continue
        one = table[number].shown
        row = found.setdefault(
            one.id, {"id": one.id, "title": one.title, "uri": one.uri, "tokens": 0}
        )
        row["tokens"] += one.length
    return list(found.values())


def _kind_of_gate(datastore: Datastore) -> str | None:
    # Gates load torch, which takes longer than all the rest of this command.
    if datastore.gate_arrays() is None:
        return None
    from knn_logits.mixture.gates.stored import stored_gate

    stored = stored_gate(datastore)
    return stored.kind if stored is not None else None


def _say_documents(
    listed: list[dict[str, Any]], limit: int, datastore: Datastore, search: str | None
) -> None:
    shown = listed[: limit or None]
    width = max((len(f"{row['tokens']:,}") for row in shown), default=0)
    for row in shown:
        more = [row["title"], row["uri"] if row["uri"] != row["id"] else None]
        said = " · ".join(one_line(one) for one in (row["id"], *more) if one)
        say(f"{row['tokens']:>{width},} tokens  {said}")
    fitting = f" with {search!r}" if search is not None else ""
    line = f"{datastore.folder}: {len(listed):,} documents{fitting}"
    if len(shown) < len(listed):
        line += f", the first {len(shown):,} of them here; --limit 0 lists all"
    say(line)


def _state(settings: SettingsRecord) -> str:
    if not settings.calibrated:
        return " (not calibrated)"
    fitted = "tuned on text given for it" if settings.tuned else "calibrated"
    return f" ({fitted}, before the datastore changed)" if settings.stale else f" ({fitted})"


def _learned(record: LearnedRecord | None) -> str | None:
    if record is None:
        return None
    what = "tokens" if record.targets == "tokens" else "tokens, and a datastore's answers to them"
    return (
        f"the entries are rows, {record.rows:g} for each different token of {record.documents:,} "
        f"documents, learnt from {record.entries:,} {what}; no text is kept"
    )


def _on_demand(manifest: Manifest) -> str:
    own = manifest.on_demand
    if own is None:
        return ""
    return (
        f"; none stored: computed for passages of {own.passage} entries, of which {own.found} are "
        f"found every {own.every} tokens"
    )


def _suffixes(manifest: Manifest) -> str | None:
    if manifest.file("suffixes") is None:
        return None
    fitted = " (shares fitted to text)" if manifest.infini_gram is not None else ""
    return f"of {manifest.tokens:,} tokens, for --infini-gram{fitted}"


def _writing(writing: WritingRecord | None) -> str:
    if writing is None:
        return "the same settings"
    line = f"k {writing.k}, lmbda {writing.lmbda:g}, temperature {writing.temperature:g}"
    line += suffix_words(writing.suffix_weight)
    line += ", following passages" if writing.retomaton else ""
    ngram = writing.no_repeat_ngram_size
    return f"{line}, no {ngram} tokens in a row twice" if ngram else line
