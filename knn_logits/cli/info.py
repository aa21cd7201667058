"""`knn-logits info STORE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knn_logits.cli import options
from knn_logits.cli.common import open_datastore, print_json, say
from knn_logits.printable import one_line

if TYPE_CHECKING:
    from knn_logits.datastore.manifest import SettingsRecord, WritingRecord


def info(store: options.Store, json: options.Json = False) -> None:
    """Say what a datastore holds and which model it belongs to."""
    datastore = open_datastore(store)
    manifest = datastore.manifest
    size = sum(record.bytes for record in manifest.files)
    from knn_logits.gating.stored import stored_gate

    stored = stored_gate(datastore)
    gate = stored.kind if stored is not None else None
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
        ("keys", f"{manifest.dim} numbers in {manifest.dtype}, {manifest.metric}"),
        ("windows", f"{windows.window} tokens, stride {windows.stride}{joined}"),
        ("pairs", manifest.pairs),
        ("index", f"{manifest.index.factory}{probes}{found}"),
        (
            "settings",
            f"k {settings.k}, lmbda {settings.lmbda:g}, temperature {settings.temperature:g}"
            + _state(settings),
        ),
        ("for writing", _writing(manifest.writing)),
        ("gate", f"{gate}; weighs the neighbors where {scored}no lmbda is given" if gate else None),
        ("source", manifest.source),
        ("license", manifest.license),
    ):
        if value is not None:
            say(f"{name:10} {one_line(str(value))}")


def _state(settings: SettingsRecord) -> str:
    if not settings.calibrated:
        return " (not calibrated)"
    fitted = "tuned on text given for it" if settings.tuned else "calibrated"
    return f" ({fitted}, before the datastore changed)" if settings.stale else f" ({fitted})"


def _writing(writing: WritingRecord | None) -> str:
    if writing is None:
        return "the same settings"
    line = f"k {writing.k}, lmbda {writing.lmbda:g}, temperature {writing.temperature:g}"
    line += ", following passages" if writing.retomaton else ""
    ngram = writing.no_repeat_ngram_size
    return f"{line}, no {ngram} tokens in a row twice" if ngram else line
