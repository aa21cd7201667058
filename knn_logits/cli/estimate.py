"""`knn-logits estimate [MODEL [CORPUS...]]`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import load_model, prepare, reads_pairs
from knn_logits.cli.reading import Fields, Told, documents_of
from knn_logits.cli.terminal import Bars, interruptible, print_json, say, stdout_table
from knn_logits.cli.units import in_bytes, in_time
from knn_logits.errors import ConfigError
from knn_logits.settings.config import IndexConfig, WindowConfig, check_metric

if TYPE_CHECKING:
    from knn_logits.building.estimate import Estimate

_MOST_TOKENS = 10**15


def estimate(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Hub id or folder of the model.")
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Argument(metavar="CORPUS...", help="The documents, as for build."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens", metavar="N", help="Number of tokens, such as 3e9, in place of a corpus."
        ),
    ] = None,
    dim: Annotated[
        int | None, typer.Option("--dim", min=1, help="Length of a key, in place of a model.")
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option("--layers", min=1, help="Number of the model's layers, with --dim."),
    ] = None,
    k: options.K = None,
    metric: options.Metric = None,
    key: options.Key = "ffn_input",
    index: options.Index = "auto",
    nprobe: options.Nprobe = None,
    window: options.Window = None,
    stride: options.Stride = None,
    keys_dtype: Annotated[
        str, typer.Option("--keys-dtype", help="Precision of the stored keys: float16 or float32.")
    ] = "float16",
    batch_tokens: options.BatchTokens = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate/--no-calibrate", help="Count the time to choose settings."),
    ] = True,
    out: Annotated[
        str, typer.Option("--out", metavar="STORE", help="Folder whose disk is to hold it.")
    ] = ".",
    text_field: options.TextField = "text",
    source_field: options.SourceField = "source",
    target_field: options.TargetField = "target",
    encoding: options.Encoding = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Say what a datastore would need, by kind of index, before anything is built.

    With MODEL and CORPUS the text is counted. With --tokens there need be no text yet, and with
    --dim and --layers no model either. Times are measured on this machine, for a few seconds.
    """
    wanted = _tokens(tokens)
    _check(model, corpus or [], wanted, dim, layers)
    config = IndexConfig(
        index,
        check_metric(metric) if metric is not None else None,
        nprobe=nprobe,
        seed=seed,
    )
    shape: dict[str, Any] = {
        "key": key,
        "window": WindowConfig(window, stride),
        "index": config,
        "k": k,
        "calibrate": calibrate,
        "keys_dtype": keys_dtype,
        "batch_tokens": batch_tokens,
        "threads": threads,
        "compare": True,
    }
    from knn_logits.building.estimate import estimate_build, forecast

    told = Told()
    with Bars() as bars, interruptible("nothing was written"):
        shape["progress"] = bars
        prepare(threads, seed)
        loaded: Any = None
        tokenizer: Any = None
        documents: Any = None
        if model is not None and corpus:
            fields = Fields(
                text_field,
                source=source_field,
                target=target_field,
                encoding=encoding,
                strict=strict,
            )
            documents = documents_of(corpus, fields, told, bars, pairs=reads_pairs(model))
        if model is not None:
            loaded, tokenizer = load_model(model, device, dtype)
        if documents is not None:
            found = estimate_build(loaded, tokenizer, documents, **shape)
        else:
            assert wanted is not None
            found = forecast(
                wanted, model=loaded, tokenizer=tokenizer, dim=dim, layers=layers, **shape
            )
    _print(found, Path(out), told, json=json)


def _tokens(text: str | None) -> int | None:
    """Reads a number of tokens, which may be written as 3e9.

    Raises:
        ConfigError: when it is no such number.
    """
    if text is None:
        return None
    try:
        number = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        number = math.nan
    if not 2 <= number <= _MOST_TOKENS:
        raise ConfigError(f"--tokens takes a number from 2 to 1e15, such as 3e9, not {text!r}")
    return int(number)


def _check(
    model: str | None, corpus: list[str], tokens: int | None, dim: int | None, layers: int | None
) -> None:
    """Refuses arguments that say a thing twice, or not at all.

    Raises:
        ConfigError: when something is missing or doubled.
    """
    if bool(corpus) == (tokens is not None):
        raise ConfigError(
            "give either the documents or their number of tokens: estimate MODEL CORPUS..., or "
            "estimate MODEL --tokens 3e9"
        )
    if (model is None) == (dim is None):
        raise ConfigError(
            "give either a model or the length of its keys: estimate MODEL --tokens 3e9, or "
            "estimate --tokens 3e9 --dim 4096 --layers 32"
        )
    if layers is not None and dim is None:
        raise ConfigError("--layers belongs to --dim: a model has its own number of layers")


def _print(found: Estimate, out: Path, told: Told, *, json: bool) -> None:
    from knn_logits.building.sizes import gpu_for, is_enough, this_machine

    here = this_machine(out)
    enough = [
        is_enough(max(one.memory, one.building_memory), one.bytes, here) for one in found.needs
    ]
    if json:
        kinds = [
            {
                "index": one.index,
                "chosen": one.chosen,
                "nprobe": one.nprobe,
                "bytes": one.bytes,
                "memory": one.memory,
                "building_memory": one.building_memory,
                "gpu_memory": one.gpu_memory,
                "seconds": None if one.seconds is None else round(one.seconds, 1),
                "milliseconds": _rounded(one.milliseconds),
                "batch_milliseconds": _rounded(one.batch_milliseconds),
                "machine": one.machine,
                "this_machine": fits,
            }
            for one, fits in zip(found.needs, enough, strict=True)
        ]
        print_json(
            {
                "documents": found.documents,
                "tokens": found.tokens,
                "entries": found.entries,
                "dim": found.dim,
                "bytes": found.bytes,
                "seconds": None if found.seconds is None else round(found.seconds, 1),
                "kinds": kinds,
                "skipped": len(told.skipped),
            }
        )
        return
    say(f"{found.tokens:,} tokens, {found.entries:,} entries, keys of {found.dim:,} numbers")
    if told.summary:
        say(told.summary)
    table = Table(box=None, pad_edge=False)
    for name in ("index", "disk", "memory", "to build", "GPU", "time", "1 query", "8 queries"):
        table.add_column(name, justify="left" if name == "index" else "right", no_wrap=True)
    for one in found.needs:
        table.add_row(
            one.index + (" *" if one.chosen else ""),
            in_bytes(one.bytes),
            in_bytes(one.memory),
            in_bytes(one.building_memory),
            "-" if one.gpu_memory is None else in_bytes(one.gpu_memory),
            "-" if one.seconds is None else in_time(one.seconds),
            _in_milliseconds(one.milliseconds),
            _in_milliseconds(one.batch_milliseconds),
        )
    stdout_table(table)
    say("* what build takes. Memory includes the model; the times are of this machine.")
    for one, fits in zip(found.needs, enough, strict=True):
        mine = "this machine is large enough" if fits else "this machine is too small"
        gpu = "" if one.gpu_memory is None else f", or a GPU of {gpu_for(one.gpu_memory)} to search"
        say(f"{one.index}: {one.machine}{gpu}; {mine}")
    if found.seconds is None:
        say("no time is known without a model: give --layers as well")
    say("nothing was written")


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.3g}")


def _in_milliseconds(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:.2g} ms" if number < 10 else f"{number:,.0f} ms"
