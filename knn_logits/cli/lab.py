"""Commands for research: `distill` and `import`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.filesize import decimal

from knn_logits.cli.bars import AGAIN, Bars
from knn_logits.cli.build import StoreOptions
from knn_logits.cli.corpus_options import CorpusOptions, Report
from knn_logits.cli.loading import Run, RunOptions, index_of, index_words, open_datastore, size_of
from knn_logits.cli.options import Json, Model, Settable, Without, argument, command
from knn_logits.cli.terminal import answer, in_time, picked, tell
from knn_logits.settings.config import IndexConfig
from knn_logits.settings.declaration import setting
from knn_logits.settings.passes import PassConfig, WindowConfig
from knn_logits.settings.registry import settings_line
from knn_logits.store.layout import MANIFEST

if TYPE_CHECKING:
    from knn_logits.corpus.documents import Document
    from knn_logits.store.datastore import Datastore


@command
def distill(
    model: Model,
    passes: Annotated[PassConfig, Without(("concatenate",))],
    fields: Annotated[CorpusOptions, Without(("source_field", "target_field"))],
    output: StoreOptions,
    run: RunOptions,
    out: str = setting(..., "Folder to write; new or empty.", metavar="FOLDER"),
    corpus: list[str] = argument(
        "CORPUS...", "Text, as for build, or a datastore folder, whose text and keys are used."
    ),
    rows: float = setting(3.0, "Average number of rows per distinct token of the corpus."),
    epochs: int = setting(6, "Maximum number of epochs.", least=1),
    json: Json = False,
) -> None:
    """Train a small learned memory to replace a datastore.

    The result works wherever a datastore does (generate, explain, eval, tune, push). It is far
    smaller and stores no text, so a vote refers to a row and not to a passage.
    """
    report = Report()
    with Bars(AGAIN) as bars:
        text: Any = _corpus(corpus, fields, report, bars)
        loaded, tokenizer = run.load(model)
        from knn_logits.lab.distilling import distill as learn

        how = {**passes.keywords(), **vars(output), "seed": run.seed, "progress": bars}
        how |= {"rows": rows, "epochs": epochs}
        made = learn(loaded, tokenizer, text, out, **how)
    _answer_learnt(made, report, bars.seconds, json)


def _corpus(
    corpus: list[str], fields: CorpusOptions, report: Report, bars: Bars
) -> Datastore | Iterable[Document]:
    """The documents of a corpus; or a datastore, where its folder is given."""
    if len(corpus) == 1 and (Path(corpus[0]) / MANIFEST).is_file():
        return open_datastore(corpus[0], keys=True)
    return fields.documents(corpus, report, bars, pairs=False)


def _answer_learnt(made: Datastore, report: Report, seconds: float, json: bool) -> None:
    manifest = made.manifest
    record, settings = manifest.learned, manifest.settings
    assert record is not None
    content = {
        "rows": manifest.entries,
        "bytes": size_of(made),
        **picked(settings, "k", "lmbda", "temperature"),
        "perplexity": {"lm": record.perplexity_lm, "interpolated": record.perplexity},
        **record.model_dump(include={"entries", "documents", "epochs", "held_out"}),
        "store": str(made.folder),
    }
    answer(
        json,
        content,
        f"{made.folder}: {manifest.entries:,} rows from {record.entries:,} tokens of "
        f"{record.documents:,} documents in {in_time(seconds)}, {decimal(size_of(made))}",
        report.summary,
        f"perplexity of {record.held_out:,} held-out tokens: {record.perplexity_lm:.1f} → "
        f"{record.perplexity:.1f}, with {settings_line(settings, symbols=True)}",
        seconds=seconds,
    )


@command
def import_store(
    model: Model,
    settings: Annotated[dict[str, Any], Settable("build")],
    window: WindowConfig,
    output: StoreOptions,
    run: Run,
    source: str = argument(
        "SOURCE",
        "Folder with the files of knn-transformers, knnlm or knn-models. If it contains several "
        "datastores, pass the file of values.",
    ),
    out: str = setting(..., "Folder to write.", metavar="STORE"),
    index: str | None = setting(
        None, "Build this index instead of the original one.", metavar="FACTORY|exact|auto"
    ),
    json: Json = False,
) -> None:
    """Import a datastore of an earlier system.

    --window and --stride set the scoring windows.
    """
    config = None if index is None else IndexConfig(index)
    from knn_logits.lab.importing import import_datastore

    with Bars(AGAIN) as bars:
        loaded, tokenizer = run.load(model)
        how = {**settings, **picked(output, "key", "overwrite", "license"), "window": window}
        how |= {"index": config, "source_text": output.source}
        done = import_datastore(loaded, tokenizer, source, out, **how, progress=bars)
    manifest = done.store.manifest
    recall = manifest.index.recall
    for line in done.limits:
        tell(line)
    content = {
        **picked(manifest, "entries", "dim"),
        "keys": done.store.has_keys,
        "clusters": manifest.file("clusters") is not None,
        **index_of(done.store),
        "recall": recall.value if recall else None,
        **picked(done, "unwritten", "model_error"),
        "limits": list(done.limits),
    }
    unwritten = f", {done.unwritten:,} at the end were never written" if done.unwritten else ""
    answer(
        json,
        content,
        f"{done.store.folder}: {manifest.entries:,} entries{unwritten}, "
        f"{index_words(done.store)} in {bars.seconds:.0f} s",
        seconds=bars.seconds,
    )
