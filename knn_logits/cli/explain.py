"""`knn-logits explain MODEL STORE... TEXT`."""

from __future__ import annotations

from typing import Annotated

import typer

from knn_logits.cli import options
from knn_logits.cli.common import (
    check_trace_files,
    interruptible,
    keeping_trace,
    load_model,
    open_datastore,
    prepare,
    print_json,
    text_or_file,
)
from knn_logits.cli.machines import partial_answers, searching, spread_indexes
from knn_logits.cli.mixture import mixture_settings


def explain(
    model: options.Model,
    stores: options.Stores,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="A text, or a file with a text; - reads standard input."
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--source", help="Source that an encoder-decoder model reads; TEXT is its target."
        ),
    ] = None,
    sources: Annotated[
        int, typer.Option("--sources", min=0, help="Number of sources to list.")
    ] = 12,
    preset: options.PresetOption = None,
    k: options.K = None,
    lmbda: options.Lmbda = None,
    gate: options.Gate = None,
    temperature: options.Temperature = None,
    nprobe: options.Nprobe = None,
    refine: options.Refine = False,
    retomaton: options.Retomaton = False,
    min_knns: options.MinKnns = None,
    max_knns: options.MaxKnns = None,
    pointer_weight: options.PointerWeight = None,
    suffix_weight: options.SuffixWeight = None,
    pointer_distances: options.PointerDistances = None,
    infini_gram: options.InfiniGram = None,
    without: options.Without = None,
    weights: options.Weights = None,
    native_index: options.NativeIndex = False,
    ray: options.Ray = None,
    shards: options.Shards = None,
    replicas: options.Replicas = None,
    partial: options.Partial = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    save: options.Save = None,
    html: options.Html = None,
    json: options.Json = False,
) -> None:
    """Show which passages support each word of an existing text."""
    text = text_or_file(text)
    from knn_logits.evidence.plain import token_dict

    check_trace_files(save, html)
    indexes = spread_indexes(ray, shards, replicas, partial)
    datastores = [open_datastore(store, keys=refine or retomaton) for store in stores]
    mixture = mixture_settings(locals(), datastores, scoring=True)
    prepare(threads)
    loaded, tokenizer = load_model(model, device, dtype)
    from knn_logits.evidence.explanation import explain as explain_text

    with interruptible("nothing was written"), searching(indexes, datastores):
        trace = explain_text(
            loaded,
            tokenizer,
            datastores,
            text,
            source=source,
            **mixture,
            native_index=native_index,
            indexes=indexes,
            threads=threads,
        )
    lacking = partial_answers(indexes)
    with keeping_trace(trace, save, html):
        if json:
            tokens = [token_dict(token) for token in trace[0].tokens]
            content = {"text": text, "first": trace[0].prompt, "near": trace[0].near}
            print_json({**content, **lacking, "tokens": tokens})
            return
        trace.show(sources)
