"""Commands for research: `distill` and `import`."""

from __future__ import annotations

from typing import Annotated, Any

from rich.filesize import decimal

from knn_logits.cli.bars import AGAIN, Bars
from knn_logits.cli.build import StoreOptions
from knn_logits.cli.loading import Run, RunOptions, figures_of, index_words, open_datastore, size_of
from knn_logits.cli.options import Json, Model, Settable, Store, argument, command
from knn_logits.cli.terminal import answer, in_time, picked, tell
from knn_logits.settings.config import IndexConfig
from knn_logits.settings.declaration import setting
from knn_logits.settings.passes import WindowConfig
from knn_logits.settings.registry import settings_line


@command
def distill(
    model: Model,
    store: Store,
    run: RunOptions,
    out: str = setting(..., "Folder to write; new or empty.", metavar="FOLDER"),
    rows: float = setting(3.0, "Average number of rows per distinct token of the corpus."),
    epochs: int = setting(6, "Maximum number of epochs.", least=1),
    overwrite: bool = setting(False, "Overwrite an existing datastore."),
    json: Json = False,
) -> None:
    """Train a small learned memory to replace a datastore.

    The result works wherever a datastore does (generate, explain, eval, tune, push). It is far
    smaller and stores no text, so a vote refers to a row and not to a passage.
    """
    datastore = open_datastore(store, keys=True)
    with Bars("run the same command again to start over") as bars:
        loaded, tokenizer = run.load(model, datastore.folder)
        from knn_logits.lab.distilling import distill as learn

        how: dict[str, Any] = {"rows": rows, "epochs": epochs, "overwrite": overwrite}
        made = learn(loaded, tokenizer, datastore, out, seed=run.seed, progress=bars, **how)
    manifest = made.manifest
    record, settings = manifest.learned, manifest.settings
    assert record is not None
    content = {
        **figures_of(made),
        "rows": manifest.entries,
        **picked(settings, "k", "lmbda", "temperature"),
        "perplexity": {"lm": record.perplexity_lm, "interpolated": record.perplexity},
    }
    answer(
        json,
        content,
        f"{made.folder}: {manifest.entries:,} rows from {record.entries:,} tokens of "
        f"{record.documents:,} documents in {in_time(bars.seconds)}, {decimal(size_of(made))}",
        f"perplexity of {record.held_out:,} held-out tokens: {record.perplexity_lm:.1f} → "
        f"{record.perplexity:.1f}, with {settings_line(settings, symbols=True)}",
        seconds=bars.seconds,
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
    for line in done.limits:
        tell(line)
    content = {
        **figures_of(done.store),
        "clusters": manifest.file("clusters") is not None,
        **picked(done, "unwritten", "model_error", "limits"),
    }
    unwritten = f", {done.unwritten:,} at the end were never written" if done.unwritten else ""
    answer(
        json,
        content,
        f"{done.store.folder}: {manifest.entries:,} entries{unwritten}, "
        f"{index_words(done.store)} in {bars.seconds:.0f} s",
        seconds=bars.seconds,
    )
