"""`knn-logits import MODEL SOURCE --out STORE`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import load_model, prepare
from knn_logits.cli.terminal import Bars, interruptible, print_json, say, tell
from knn_logits.settings.config import IndexConfig, KNNConfig, WindowConfig


def import_store(
    model: options.Model,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Folder with the files of knn-transformers, knnlm or knn-models. If it holds "
            "several datastores, name the file of values.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", metavar="STORE", help="Folder to write.")],
    key: options.Key = "ffn_input",
    index: Annotated[
        str | None,
        typer.Option(
            "--index", metavar="FACTORY|exact|auto", help="Build this index in place of theirs."
        ),
    ] = None,
    k: options.K = None,
    lmbda: options.Lmbda = None,
    temperature: options.Temperature = None,
    suffix_weight: options.SuffixWeight = None,
    window: Annotated[
        int | None,
        typer.Option("--window", help="Number of tokens that the model sees at once in scoring."),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option("--stride", help="Number of tokens by which the window moves on in scoring."),
    ] = None,
    license: Annotated[
        str | None, typer.Option("--license", help="Licence of the text, for the manifest.")
    ] = None,
    text_source: Annotated[
        str | None, typer.Option("--source", help="Where the text is from, for the manifest.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing datastore.")
    ] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Make a datastore from the files of an earlier kNN-LM system."""
    # Wrong arguments are refused before the model is loaded.
    KNNConfig().with_given(k=k, lmbda=lmbda, temperature=temperature, suffix_weight=suffix_weight)
    windows = WindowConfig(window, stride)
    wanted = None if index is None else IndexConfig(index)
    from knn_logits.lab.convert.importing import import_datastore

    prepare(threads)
    started = time.monotonic()
    with Bars() as bars, interruptible("run the same command again, and it goes on here"):
        loaded, tokenizer = load_model(model, device, dtype)
        done = import_datastore(
            loaded,
            tokenizer,
            source,
            out,
            key=key,
            window=windows,
            index=wanted,
            k=k,
            lmbda=lmbda,
            temperature=temperature,
            suffix_weight=suffix_weight,
            threads=threads,
            overwrite=overwrite,
            license=license,
            source_text=text_source,
            progress=bars,
        )
    seconds = time.monotonic() - started
    manifest = done.store.manifest
    recall = manifest.index.recall
    for line in done.limits:
        tell(line)
    if json:
        print_json(
            {
                "entries": manifest.entries,
                "dim": manifest.dim,
                "keys": done.store.has_keys,
                "clusters": manifest.file("clusters") is not None,
                "index": manifest.index.factory,
                "nprobe": manifest.index.nprobe,
                "recall": recall.value if recall else None,
                "unwritten": done.unwritten,
                "model_error": done.model_error,
                "limits": list(done.limits),
                "seconds": round(seconds, 3),
            }
        )
        return
    found = f", recall@{recall.at} {recall.value:.3f}" if recall else ""
    unwritten = f", {done.unwritten:,} at the end were never written" if done.unwritten else ""
    say(
        f"{done.store.folder}: {manifest.entries:,} entries{unwritten}, index "
        f"{manifest.index.factory}{found} in {seconds:.0f} s"
    )
