"""`knn-logits estimate [MODEL [CORPUS...]]`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table

from knn_logits.cli.bars import Bars
from knn_logits.cli.build import KEY_HELP
from knn_logits.cli.corpus_options import CorpusOptions, Report
from knn_logits.cli.loading import RunOptions, reads_pairs
from knn_logits.cli.options import Json, Without, argument, command
from knn_logits.cli.terminal import in_bytes, in_time, picked, print_json, say, stdout_table
from knn_logits.errors import ConfigError
from knn_logits.settings.config import IndexConfig, KNNConfig
from knn_logits.settings.declaration import check_fields, setting, settings_of
from knn_logits.settings.passes import PassConfig

if TYPE_CHECKING:
    from knn_logits.building.estimate import Estimate, Need

_MOST_TOKENS = 10**15


def _read_tokens(text: str) -> int:
    """Reads a number of tokens, which may be written as 3e9."""
    try:
        number = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        number = math.nan
    if not 2 <= number <= _MOST_TOKENS:
        raise ConfigError(f"--tokens must be a number from 2 to 1e15, such as 3e9, not {text!r}")
    return int(number)


@dataclass(frozen=True)
class SizeOptions:
    """The sizes of a corpus and a model that need not be there."""

    tokens: int | None = setting(
        None, "Number of tokens, such as 3e9, instead of a corpus.", metavar="N", read=_read_tokens
    )
    dim: int | None = setting(None, "Key dimension, instead of a model.", least=1)
    layers: int | None = setting(None, "Number of layers, with --dim.", least=1)

    def check(self, model: str | None, corpus: list[str]) -> None:
        if bool(corpus) == (self.tokens is not None):
            raise ConfigError(
                "pass either documents or a number of tokens: estimate MODEL CORPUS..., or "
                "estimate MODEL --tokens 3e9"
            )
        if (model is None) == (self.dim is None):
            raise ConfigError(
                "pass either a model or the dimension of its keys: estimate MODEL --tokens 3e9, or "
                "estimate --tokens 3e9 --dim 4096 --layers 32"
            )
        if self.layers is not None and self.dim is None:
            raise ConfigError(
                "--layers is only valid with --dim: a model has its own number of layers"
            )


@dataclass(frozen=True)
class ShapeOptions:
    """What a datastore would be like."""

    k: int | None = setting(None, settings_of(KNNConfig)["k"].help, least=1)
    key: str = setting("ffn_input", KEY_HELP)
    keys_dtype: Literal["float16", "float32"] = setting("float16", "Precision of the stored keys.")
    calibrate: bool = setting(
        True, "Include calibration in the build time.", option="--calibrate/--no-calibrate"
    )

    def __post_init__(self) -> None:
        check_fields(self)


@command
def estimate(
    sizes: SizeOptions,
    shape: ShapeOptions,
    index: Annotated[IndexConfig, Without(("budget", "target_recall", "native"))],
    passes: Annotated[PassConfig, Without(("concatenate",))],
    fields: CorpusOptions,
    run: RunOptions,
    model: str | None = argument("MODEL", "Hub id or folder of the model.", None),
    corpus: list[str] | None = argument("CORPUS...", "The documents, as for build.", None),
    out: str = setting(".", "Folder on the disk for the datastore.", metavar="STORE"),
    json: Json = False,
) -> None:
    """Estimate the size and build time of a datastore, by index type.

    MODEL and CORPUS give exact counts. --tokens replaces the corpus; --dim and --layers replace
    the model. A benchmark of a few seconds on this machine gives the times. Nothing is built.
    """
    sizes.check(model, corpus or [])
    made = {**vars(shape), **passes.keywords(), "index": replace(index, seed=run.seed)}
    from knn_logits.building.estimate import estimate_build, forecast

    report = Report()
    with Bars("nothing was written") as bars:
        made |= {"threads": run.threads, "compare": True, "progress": bars}
        run.prepare()
        documents: Any = None
        if model is not None and corpus:
            documents = fields.documents(corpus, report, bars, pairs=reads_pairs(model))
        loaded: tuple[Any, Any] = (None, None) if model is None else run.load(model)
        if documents is not None:
            result = estimate_build(*loaded, documents, **made)
        else:
            result = forecast(model=loaded[0], tokenizer=loaded[1], **vars(sizes), **made)
    _answer(result, Path(out), report, json=json)


_COLUMNS = ("index", "disk", "memory", "to build", "GPU", "time", "1 query", "8 queries")


def _answer(result: Estimate, out: Path, report: Report, *, json: bool) -> None:
    from knn_logits.building.costs import gpu_for, is_enough, this_machine

    machine = this_machine(out)
    enough = [
        is_enough(max(need.memory, need.building_memory), need.bytes, machine)
        for need in result.needs
    ]
    if json:
        seconds = None if result.seconds is None else round(result.seconds, 1)
        content = picked(result, "documents", "tokens", "entries", "dim", "bytes")
        kinds = [
            _kind(need) | {"this_machine": fits}
            for need, fits in zip(result.needs, enough, strict=True)
        ]
        content |= {"seconds": seconds, "kinds": kinds, "skipped": len(report.skipped)}
        print_json(content)
        return
    say(f"{result.tokens:,} tokens, {result.entries:,} entries, keys of {result.dim:,} numbers")
    if report.summary:
        say(report.summary)
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "index" else "right")
    for need in result.needs:
        table.add_row(
            need.index + (" *" if need.chosen else ""),
            in_bytes(need.bytes),
            in_bytes(need.memory),
            in_bytes(need.building_memory),
            "-" if need.gpu_memory is None else in_bytes(need.gpu_memory),
            "-" if need.seconds is None else in_time(need.seconds),
            _in_milliseconds(need.milliseconds),
            _in_milliseconds(need.batch_milliseconds),
        )
    stdout_table(table)
    say("* the type that build chooses. Memory includes the model; times are for this machine.")
    for need, fits in zip(result.needs, enough, strict=True):
        mine = "this machine is large enough" if fits else "this machine is too small"
        gpu = (
            "" if need.gpu_memory is None else f", or a GPU of {gpu_for(need.gpu_memory)} to search"
        )
        say(f"{need.index}: {need.machine}{gpu}; {mine}")
    if result.seconds is None:
        say("build times need a model: pass --layers as well")
    say("nothing was written")


def _kind(need: Need) -> dict[str, Any]:
    content = picked(need, "index", "chosen", "nprobe", "bytes", "memory", "building_memory")
    content |= picked(need, "gpu_memory", "machine")
    content["seconds"] = None if need.seconds is None else round(need.seconds, 1)
    for name in ("milliseconds", "batch_milliseconds"):
        number = getattr(need, name)
        content[name] = None if number is None else float(f"{number:.3g}")
    return content


def _in_milliseconds(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:.2g} ms" if number < 10 else f"{number:,.0f} ms"
