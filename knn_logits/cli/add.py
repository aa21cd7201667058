"""`knn-logits add MODEL STORE CORPUS...`."""

from __future__ import annotations

import time

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import load_model, open_datastore, prepare, present, reads_pairs
from knn_logits.cli.reading import Fields, Told, documents_of
from knn_logits.cli.terminal import Bars, interruptible, print_json, say
from knn_logits.printable import one_line


def add(
    model: options.Model,
    store: options.Store,
    corpus: options.Corpus,
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
    """Add documents to a datastore, without computing its old keys again."""
    from knn_logits.building.adding import add_documents

    started = time.monotonic()
    fields = Fields(text_field, id_field, title_field, source_field, target_field, encoding, strict)
    told = Told()
    datastore = open_datastore(store)
    before = datastore.manifest
    known: list[tuple[str, str]] = []
    with Bars() as bars, interruptible("run the same command again, and it goes on here"):
        documents = documents_of(corpus, fields, told, bars, pairs=reads_pairs(model))
        prepare(threads)
        loaded, tokenizer = load_model(model, device, dtype, resumes=datastore.folder)
        done = add_documents(
            loaded,
            tokenizer,
            datastore,
            documents,
            batch_tokens=batch_tokens,
            threads=threads,
            known=lambda id, there: known.append((id, there)),
            progress=bars,
        )
    seconds = time.monotonic() - started
    manifest = done.manifest
    entries, count = present(done)
    recall = manifest.index.recall
    if json:
        print_json(
            {
                "entries": entries,
                "documents": count,
                "added_entries": manifest.entries - before.entries,
                "added_documents": manifest.documents - before.documents,
                "known": len(known),
                "skipped": len(told.skipped),
                "recall": recall.value if recall else 1.0,
                "seconds": round(seconds, 3),
            }
        )
        return
    if known:
        id, there = known[0]
        named = one_line(id) + (f" (as {one_line(there)})" if there != id else "")
        more = ", ..." if len(known) > 1 else ""
        say(
            f"{len(known):,} documents are already in the datastore and were not added again: "
            f"{named}{more}"
        )
    if manifest == before:
        say(f"{done.folder}: nothing was added; `knn-logits sync` replaces changed documents")
        return
    found = f", recall@{recall.at} {recall.value:.3f}" if recall else ""
    say(
        f"{done.folder}: {manifest.documents - before.documents:,} documents and "
        f"{manifest.entries - before.entries:,} entries added in {seconds:.0f} s, now "
        f"{entries:,} entries{found}"
    )
    if told.summary:
        say(told.summary)
