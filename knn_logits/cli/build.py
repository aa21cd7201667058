"""Makes datastores: `knn-logits build MODEL CORPUS... --out STORE` and `distill`."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.filesize import decimal

from knn_logits.cli.bars import AGAIN, Bars
from knn_logits.cli.corpus_options import Corpus, CorpusOptions, Report
from knn_logits.cli.loading import (
    RunOptions,
    figures_of,
    index_words,
    open_datastore,
    reads_pairs,
    size_of,
)
from knn_logits.cli.memory import Ray
from knn_logits.cli.options import Json, Model, Settable, Store, command
from knn_logits.cli.terminal import answer, in_documents, in_time, picked, say
from knn_logits.errors import ConfigError, KNNLogitsError
from knn_logits.settings.config import IndexConfig, PassConfig
from knn_logits.settings.declaration import setting
from knn_logits.settings.registry import settings_line, stored_names

if TYPE_CHECKING:
    from knn_logits.building.builder import Needs
    from knn_logits.store.datastore import Datastore


@dataclass(frozen=True)
class KeyOptions:
    """How the keys of a datastore are made."""

    calibrate: bool = setting(
        True,
        "Tune k, lmbda, temperature and suffix weight on a sample of the corpus.",
        option="--calibrate/--no-calibrate",
    )
    source_prefix: str = setting("", "Text prepended to each source, for models such as T5.")
    source_lang: str | None = setting(
        None, "Source language code of the tokenizer, such as eng_Latn."
    )
    target_lang: str | None = setting(None, "Target language code, such as deu_Latn.")
    store_keys: bool = setting(
        True,
        "Compute and store the keys, or compute them on demand while generating.",
        option="--keys/--no-keys",
    )
    keys_dtype: Literal["float16", "float32"] = setting("float16", "Precision of the stored keys.")
    encoder: str | None = setting(
        None,
        "Hub id or folder of the sentence encoder for questions; empty for none. "
        "By default all-MiniLM-L6-v2.",
    )


@dataclass(frozen=True)
class StoreOptions:
    """The key, the origin and the license of a datastore, and whether it may exist."""

    key: str = setting(
        "ffn_input",
        "Where keys are read: ffn_input, layer_output, head_input, or a module path with :input "
        "or :output.",
    )
    license: str | None = setting(None, "License of the text, recorded in the manifest.")
    source: str | None = setting(None, "Origin of the text, recorded in the manifest.")
    overwrite: bool = setting(
        False, "Overwrite an existing datastore, or restart an unfinished build."
    )


@command
def build(
    model: Model,
    corpus: Corpus,
    settings: Annotated[dict[str, Any], Settable("build")],
    keys: KeyOptions,
    index: IndexConfig,
    passes: PassConfig,
    fields: CorpusOptions,
    output: StoreOptions,
    run: RunOptions,
    cluster: Ray,
    out: str | None = setting(
        None, "Folder to write; required without --dry-run.", metavar="STORE"
    ),
    dry_run: bool = setting(False, "Print the size and the time of the keys only."),
    json: Json = False,
) -> None:
    """Build a datastore from a corpus.

    Every token but the first of a document becomes an entry: the hidden state that precedes it
    is the key, the token is the value. With an encoder-decoder model, these are target tokens.
    --k, --lmbda, --temperature and --suffix-weight are stored as the datastore's defaults.
    Values not given are calibrated on a sample of the corpus.
    """
    if out is None and not dry_run:
        raise typer.BadParameter("missing the folder to write", param_hint="--out")
    out = None if dry_run else out
    from knn_logits.building.distributed import started_by_torchrun

    # The number of this process among those that torchrun has started; None without it.
    rank = int(os.environ["RANK"]) if started_by_torchrun() else None
    if rank is not None:
        if out is None:
            raise ConfigError("--dry-run runs in a single process: start it without torchrun")
        run = replace(run, device=_device_of_rank(run.device))
    from knn_logits.building.builder import build_datastore
    from knn_logits.progress import no_progress

    report = Report()
    with Bars(AGAIN) as bars:
        # Only the first process reads the corpus and shows progress.
        pairs = not rank and reads_pairs(model)
        documents = iter(()) if rank else fields.documents(corpus, report, bars, pairs=pairs)
        loaded, tokenizer = run.load(model, None if output.overwrite else out)
        made = {**vars(keys), **passes.keywords(), **settings}
        made |= {"index": replace(index, seed=run.seed)}
        made["progress"] = no_progress if rank else bars
        if out is None:
            from knn_logits.building.builder import build_needs

            del made["encoder"]
            needs = build_needs(loaded, tokenizer, documents, key=output.key, **made)
            _answer_dry_run(needs, report, json)
            return
        try:
            made |= {"skipped": report.skipped, "ray": cluster.ray, "torchrun": rank is not None}
            store = build_datastore(loaded, tokenizer, documents, out, **made, **vars(output))
        except KNNLogitsError:
            if not rank:
                raise
            # The first process prints the error of any of them.
            raise typer.Exit(1) from None
    if not rank:
        _answer_built(store, report, bars.seconds, model, json)


def _device_of_rank(device: str) -> str:
    """The device of this process, where torchrun starts one process for each GPU."""
    import torch

    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"


def _answer_dry_run(needs: Needs, report: Report, json: bool) -> None:
    content = {**vars(needs), "seconds": round(needs.seconds, 3), "skipped": len(report.skipped)}
    line = (
        f"{in_documents(needs.documents)}, {needs.tokens:,} tokens, {needs.entries:,} entries: "
        f"about {decimal(needs.bytes)} of disk, and {in_time(needs.seconds)} to compute the keys; "
        "nothing was written"
    )
    if not json:
        report.sum_up()
    answer(json, content, line)


def _answer_built(store: Datastore, report: Report, seconds: float, model: str, json: bool) -> None:
    manifest = store.manifest
    settings = manifest.settings
    content = {
        **figures_of(store),
        "skipped": manifest.skipped,
        "entries_per_second": round(manifest.entries / seconds, 1),
        "keys": manifest.on_demand is None,
        **picked(settings, *stored_names(), "calibrated"),
        "gate": manifest.gate.model_dump() if manifest.gate else None,
    }
    how = "chosen by likelihood" if settings.calibrated else "not calibrated"
    chosen = f"settings ({how}): {settings_line(settings, symbols=True)}"
    gate = None if manifest.gate is None else f"gate for λ: {manifest.gate}"
    line = (
        f"{store.folder}: {manifest.entries:,} entries of {in_documents(manifest.documents)} in "
        f"{in_time(seconds)} ({manifest.entries / seconds:,.0f} a second), "
        f"{decimal(size_of(store))}, {index_words(store)}"
    )
    following = None
    if not manifest.pairs:
        following = "next: " + shlex.join(["knn-logits", "chat", model, str(store.folder)])
    if not json:
        report.sum_up()
    answer(json, content, line, chosen, gate, following, seconds=seconds)


@command
def distill(
    model: Model,
    store: Store,
    run: RunOptions,
    out: str = setting(..., "Folder to write; new or empty.", metavar="FOLDER"),
    rows: float = setting(3.0, "Average number of rows per distinct token of the corpus."),
    epochs: int = setting(6, "Maximum number of epochs.", least=1),
    overwrite: bool = setting(False, "Overwrite an existing datastore."),
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
    say(
        f"{made.folder}: {manifest.entries:,} rows from {record.entries:,} tokens of "
        f"{record.documents:,} documents in {in_time(bars.seconds)}, {decimal(size_of(made))}"
    )
    say(
        f"perplexity of {record.held_out:,} held-out tokens: {record.perplexity_lm:.1f} → "
        f"{record.perplexity:.1f}, with {settings_line(settings, symbols=True)}"
    )
