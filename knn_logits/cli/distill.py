"""`knn-logits distill MODEL CORPUS... --out FOLDER`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import load_model, open_datastore, prepare
from knn_logits.cli.reading import Fields, Told, documents_of
from knn_logits.cli.terminal import Bars, interruptible, print_json, say
from knn_logits.cli.units import in_bytes, in_time
from knn_logits.settings.config import WindowConfig
from knn_logits.store.layout import MANIFEST

if TYPE_CHECKING:
    from knn_logits.corpus.documents import Document
    from knn_logits.store.datastore import Datastore


def distill(
    model: options.Model,
    corpus: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CORPUS...]",
            help="Text, as for build; or the folder of a datastore, whose text and keys are then "
            "taken. It may be left out with --from.",
        ),
    ] = None,
    out: Annotated[
        str, typer.Option("--out", metavar="FOLDER", help="Folder to write; new or empty.")
    ] = ...,  # type: ignore[assignment]
    rows: Annotated[
        float,
        typer.Option("--rows", help="Rows for each different token of the corpus, on average."),
    ] = 3.0,
    teacher: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="STORE",
            help="A datastore whose distributions are learnt beside the corpus's tokens.",
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option("--epochs", min=1, help="How often the corpus is read, at most.")
    ] = 6,
    key: Annotated[
        str, typer.Option("--key", help="Place of the key in the model, as for build.")
    ] = "ffn_input",
    window: Annotated[
        int | None, typer.Option("--window", help="Tokens that the model sees at once.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option("--stride", help="Tokens by which the window moves on.")
    ] = None,
    text_field: options.TextField = "text",
    id_field: options.IdField = "id",
    title_field: options.TitleField = "title",
    encoding: options.Encoding = None,
    batch_tokens: options.BatchTokens = None,
    license: Annotated[
        str | None, typer.Option("--license", help="Licence of the text, for the manifest.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Where the text is from, for the manifest.")
    ] = None,
    strict: options.Strict = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace an existing datastore, or start an unfinished job again.",
        ),
    ] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Learn a few rows a token from a corpus, which take the place of a datastore.

    The folder is used wherever a datastore is: generate, explain, eval, tune, push. It is far
    smaller, and it keeps no text: a vote names a row, and no passage.
    """
    window_config = WindowConfig(window, stride)
    if not corpus and teacher is None:
        raise typer.BadParameter("give a corpus, or a datastore with --from", param_hint="CORPUS")
    started = time.monotonic()
    fields = Fields(
        text=text_field, id=id_field, title=title_field, encoding=encoding, strict=strict
    )
    told = Told()
    learnt_from = open_datastore(teacher, keys=not corpus) if teacher is not None else None
    with Bars() as bars, interruptible("run the same command again, and it goes on here"):
        text: Datastore | Iterable[Document]
        if corpus:
            text = _corpus(corpus, fields, told, bars)
        else:
            assert learnt_from is not None
            text = learnt_from
        prepare(threads, seed)
        loaded, tokenizer = load_model(model, device, dtype)
        from knn_logits.lab.distillation.distilling import distill as learn

        made = learn(
            loaded,
            tokenizer,
            text,
            out,
            rows=rows,
            teacher=learnt_from,
            epochs=epochs,
            key=key,
            window=window_config,
            batch_tokens=batch_tokens,
            seed=seed,
            overwrite=overwrite,
            license=license,
            source=source,
            progress=bars,
        )
    seconds = time.monotonic() - started
    manifest = made.manifest
    record, settings = manifest.learned, manifest.settings
    assert record is not None
    size = sum(one.bytes for one in manifest.files)
    if json:
        print_json(
            {
                "rows": manifest.entries,
                "bytes": size,
                "seconds": round(seconds, 3),
                "k": settings.k,
                "lmbda": settings.lmbda,
                "temperature": settings.temperature,
                "perplexity": {"lm": record.perplexity_lm, "interpolated": record.perplexity},
                **record.model_dump(
                    include={"targets", "entries", "documents", "epochs", "held_out"}
                ),
                "store": str(made.folder),
            }
        )
        return
    say(
        f"{made.folder}: {manifest.entries:,} rows from {record.entries:,} tokens of "
        f"{record.documents:,} documents in {in_time(seconds)}, {in_bytes(size)}"
    )
    if told.summary:
        say(told.summary)
    say(
        f"perplexity of {record.held_out:,} held-out tokens: {record.perplexity_lm:.1f} → "
        f"{record.perplexity:.1f}, with k {settings.k}, λ {settings.lmbda:g}, "
        f"τ {settings.temperature:g}"
    )


def _corpus(
    corpus: list[str], fields: Fields, told: Told, bars: Bars
) -> Datastore | Iterable[Document]:
    """The documents of a corpus; or a datastore, where its folder is given."""
    if len(corpus) == 1 and (Path(corpus[0]) / MANIFEST).is_file():
        return open_datastore(corpus[0], keys=True)
    return documents_of(corpus, fields, told, bars, pairs=False)
