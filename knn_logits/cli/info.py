"""Shows what a datastore holds, and checks it: `info` and `verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from knn_logits.cli.bars import Bars
from knn_logits.cli.loading import folder_of, index_words, open_datastore, prepare, size_of
from knn_logits.cli.options import Json, Store, command
from knn_logits.cli.terminal import in_documents, picked, print_json, say, tell
from knn_logits.printable import one_line
from knn_logits.settings.declaration import setting
from knn_logits.settings.registry import settings_line

if TYPE_CHECKING:
    from knn_logits.store.datastore import Datastore
    from knn_logits.store.manifest import Manifest
    from knn_logits.store.records import LearnedRecord, SettingsRecord


@command
def info(
    store: Store,
    documents: bool = setting(False, "List the documents: id, tokens, title, uri."),
    json: Json = False,
) -> None:
    """Show the contents of a datastore, and its model."""
    datastore = open_datastore(store)
    manifest = datastore.manifest
    listed = _listing(datastore) if documents else None
    if json:
        content: dict[str, Any] = {"ok": True, "store": str(datastore.folder)}
        content |= {"revision": datastore.revision, "bytes": size_of(datastore)}
        content |= {"gate": None, **manifest.model_dump(mode="json")}
        content["settings"]["tuned"] = manifest.settings.tuned
        kind = _kind_of_gate(datastore)
        content["gate"] = None if kind is None else {"kind": kind, **(content["gate"] or {})}
        if listed is not None:
            content |= {"found": len(listed), "listed": listed}
        print_json(content)
    elif listed is not None:
        width = max((len(f"{row['tokens']:,}") for row in listed), default=0)
        for row in listed:
            names = (row["id"], row["title"], row["uri"] if row["uri"] != row["id"] else None)
            say(f"{row['tokens']:>{width},} tokens  {' · '.join(one_line(x) for x in names if x)}")
        say(f"{datastore.folder}: {in_documents(len(listed))}")
    else:
        for name, value in _rows(datastore).items():
            if value:
                say(f"{name:11} {one_line(str(value))}")


def _rows(datastore: Datastore) -> dict[str, object]:
    manifest = datastore.manifest
    settings, windows = manifest.settings, manifest.windows
    gate = manifest.gate or _kind_of_gate(datastore)
    removed = len(manifest.removed)
    probes = f", nprobe {manifest.index.nprobe}" if manifest.index.nprobe else ""
    joined = ", documents joined" if windows.concatenate else ""
    engine = "" if manifest.model.engine == "transformers" else f", {manifest.model.engine}"
    return {
        "datastore": f"{datastore.folder} ({size_of(datastore) / 1e6:,.1f} MB)",
        "revision": datastore.revision,
        "entries": f"{manifest.entries:,} of {in_documents(manifest.documents)}",
        "learned": _learned(manifest.learned),
        "removed": f"{in_documents(removed)}, {len(datastore.removed_entries):,} entries; "
        "`knn-logits remove` deletes them from the disk"
        if removed
        else None,
        "skipped": in_documents(manifest.skipped) if manifest.skipped else None,
        "model": f"{manifest.model.id} ({manifest.model.type}, {manifest.model.dtype}{engine})",
        "key": f"{manifest.key.module}:{manifest.key.side} ({manifest.key.name})",
        "keys": f"{manifest.dim} numbers in {manifest.dtype}, {manifest.metric}"
        + _on_demand(manifest),
        "windows": f"{windows.window} tokens, stride {windows.stride}{joined}",
        "pairs": manifest.pairs,
        "index": index_words(datastore).removeprefix("index ") + probes,
        "suffixes": f"of {manifest.tokens:,} tokens, for --infini-gram"
        if manifest.file("suffixes") is not None
        else None,
        "encoder": f"{manifest.encoder.id}, {manifest.encoder.dim} numbers for each sentence"
        if manifest.encoder
        else None,
        "settings": settings_line(settings) + _state(settings),
        "gate": f"{gate}; it sets λ where none is given" if gate else None,
        "source": manifest.source,
        "license": manifest.license,
    }


def _listing(datastore: Datastore) -> list[dict[str, Any]]:
    """Lists documents. The parts of a large file, which share an id, make one row."""
    table, removed = datastore.documents, set(datastore.manifest.removed)
    rows: dict[str, dict[str, Any]] = {}
    for number in range(len(table)):
        if number not in removed:
            document = table[number].shown
            empty = picked(document, "id", "title", "uri") | {"tokens": 0}
            rows.setdefault(document.id, empty)["tokens"] += document.length
    return list(rows.values())


def _kind_of_gate(datastore: Datastore) -> str | None:
    saved = datastore.gate_arrays
    return None if saved is None else saved[1].get("gate")


def _state(settings: SettingsRecord) -> str:
    if not settings.calibrated:
        return " (not calibrated)"
    fitted = "tuned on text given for it" if settings.tuned else "calibrated"
    return f" ({fitted}, before the datastore changed)" if settings.stale else f" ({fitted})"


def _learned(record: LearnedRecord | None) -> str | None:
    if record is None:
        return None
    return (
        f"the entries are rows, {record.rows:g} for each different token of {record.documents:,} "
        f"documents, learnt from {record.entries:,} tokens; no text is kept"
    )


def _on_demand(manifest: Manifest) -> str:
    record = manifest.on_demand
    if record is None:
        return ""
    return (
        f"; none stored: computed for passages of {record.passage} entries, of which {record.found}"
        f" are found every {record.every} tokens"
    )


@command
def verify(store: Store, json: Json = False) -> None:
    """Check a datastore: hashes, shapes, ranges, and its index."""
    from knn_logits.errors import KNNLogitsError
    from knn_logits.index.opening import open_index
    from knn_logits.mixture.presets import stored_gate
    from knn_logits.store import verification
    from knn_logits.store.datastore import Datastore
    from knn_logits.store.manifest import read_manifest

    prepare()
    # Opening a damaged datastore fails before all damage is listed, so it is not opened yet.
    folder = folder_of(store)
    manifest = read_manifest(folder)
    size = sum(record.bytes for record in manifest.files)
    with Bars("nothing was changed") as bars:
        damaged = verification.damage(folder, manifest, bars)
        if not damaged:
            try:
                datastore = Datastore(folder)
                if manifest.on_demand is None:
                    open_index(datastore)
                stored_gate(datastore)
            except KNNLogitsError as error:
                damaged = [str(error)]
    if json:
        content = {"ok": not damaged, "damaged": damaged}
        content |= picked(manifest, "entries", "documents")
        print_json(content | {"bytes": size, "seconds": round(bars.seconds, 3)})
    elif not damaged:
        say(f"{folder}: whole, {size / 1e6:,.1f} MB in {bars.seconds:.1f} s")
    for line in damaged:
        tell(line, style=None)
    if damaged:
        raise typer.Exit(1)
