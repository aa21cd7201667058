"""`knn-logits build MODEL CORPUS... --out STORE`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from knn_logits.cli import options
from knn_logits.cli.common import (
    Bars,
    interruptible,
    load_model,
    prepare,
    print_json,
    reads_pairs,
    say,
    tell,
)
from knn_logits.config import (
    IndexConfig,
    KNNConfig,
    WindowConfig,
    check_metric,
)

if TYPE_CHECKING:
    from knn_logits.datastore.manifest import Manifest


def build(
    model: options.Model,
    corpus: options.Corpus,
    out: Annotated[str, typer.Option("--out", metavar="STORE", help="Folder to write.")],
    k: options.K = None,
    lmbda: options.Lmbda = None,
    temperature: options.Temperature = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate/--no-calibrate",
            help="Choose k, lmbda and temperature by a sample of the corpus.",
        ),
    ] = True,
    metric: options.Metric = None,
    key: options.Key = "ffn_input",
    index: options.Index = "auto",
    nprobe: options.Nprobe = None,
    window: Annotated[
        int | None, typer.Option("--window", help="Tokens the model sees at once.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option("--stride", help="Tokens the window moves on by.")
    ] = None,
    concatenate: Annotated[
        bool, typer.Option("--concatenate", help="Join the documents into one stream.")
    ] = False,
    source_prefix: Annotated[
        str,
        typer.Option("--source-prefix", help="Before each source, for models such as T5."),
    ] = "",
    source_lang: Annotated[
        str | None, typer.Option("--source-lang", help="By the tokenizer's name for it: eng_Latn.")
    ] = None,
    target_lang: Annotated[
        str | None, typer.Option("--target-lang", help="The language to write: deu_Latn.")
    ] = None,
    source_field: options.SourceField = "source",
    target_field: options.TargetField = "target",
    keys_dtype: Annotated[
        str, typer.Option("--keys-dtype", help="Precision of stored keys: float16 or float32.")
    ] = "float16",
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
            help="Replace a datastore that is there, or begin an unfinished build again.",
        ),
    ] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    native_index: options.NativeIndex = False,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Make a datastore of a corpus.

    Every token that has something before it becomes an entry: the model's state before it, and
    the token; of an encoder-decoder model, every token of the targets. --k, --lmbda and
    --temperature are kept as the datastore's settings; those that are not given are chosen by how
    well a sample of the corpus is predicted.
    """
    # Refused before the model is loaded.
    KNNConfig().with_given(k=k, lmbda=lmbda, temperature=temperature)
    index_config = IndexConfig(
        index,
        check_metric(metric) if metric is not None else None,
        nprobe=nprobe,
        seed=seed,
        native=native_index,
    )
    window_config = WindowConfig(window, stride)
    from knn_logits.building.builder import build_datastore
    from knn_logits.corpus.reading import corpus_bytes, read_corpus

    started = time.monotonic()
    skipped: list[tuple[str, str]] = []

    def on_skip(name: str, reason: str) -> None:
        skipped.append((name, reason))
        tell(f"skipped {name}: {reason}")

    with Bars() as bars, interruptible("run the same command again, and it goes on here"):
        total = corpus_bytes(corpus)
        documents = read_corpus(
            corpus,
            strict=strict,
            on_skip=on_skip,
            pairs=reads_pairs(model),
            pair_fields=(source_field, target_field),
            on_bytes=lambda done: bars("bytes read", done, total),
        )
        prepare(threads, seed)
        loaded, tokenizer = load_model(model, device, dtype)
        store = build_datastore(
            loaded,
            tokenizer,
            documents,
            out,
            key=key,
            window=window_config,
            concatenate=concatenate,
            source_prefix=source_prefix,
            source_lang=source_lang,
            target_lang=target_lang,
            index=index_config,
            k=k,
            lmbda=lmbda,
            temperature=temperature,
            calibrate=calibrate,
            keys_dtype=keys_dtype,
            batch_tokens=batch_tokens,
            threads=threads,
            overwrite=overwrite,
            license=license,
            source=source,
            skipped=skipped,
            progress=bars,
        )
    seconds = time.monotonic() - started
    manifest = store.manifest
    recall = manifest.index.recall
    if json:
        print_json(
            {
                "entries": manifest.entries,
                "documents": manifest.documents,
                "skipped": manifest.skipped,
                "seconds": round(seconds, 3),
                "entries_per_second": round(manifest.entries / seconds, 1),
                "index": manifest.index.factory,
                "nprobe": manifest.index.nprobe,
                "recall": recall.value if recall else 1.0,
                "k": manifest.settings.k,
                "lmbda": manifest.settings.lmbda,
                "temperature": manifest.settings.temperature,
                "calibrated": manifest.settings.calibrated,
                "writing": manifest.writing.model_dump() if manifest.writing else None,
                "store": str(store.folder),
            }
        )
        return
    found = f", recall@{recall.at} {recall.value:.3f}" if recall else ""
    say(
        f"{store.folder}: {manifest.entries:,} entries of {manifest.documents:,} documents in "
        f"{seconds:.0f} s ({manifest.entries / seconds:,.0f} a second), index "
        f"{manifest.index.factory}{found}"
        + (f"; {manifest.skipped} skipped" if manifest.skipped else "")
    )
    say(_chosen(manifest))
    say(f'next: knn-logits generate {model} {out} --prompt "..." --compare --explain')


def _chosen(manifest: Manifest) -> str:
    """The settings that hold where none are given, in words."""
    own, writing = manifest.settings, manifest.writing
    how = "chosen by likelihood" if own.calibrated else "not calibrated: the text is too short"
    line = f"settings for scoring ({how}): k {own.k}, λ {own.lmbda:g}, τ {own.temperature:g}"
    if writing is not None:
        line += f"; for writing: k {writing.k}, λ {writing.lmbda:g}, τ {writing.temperature:g}"
        line += ", following passages" if writing.retomaton else ""
    return line
