"""`knn-logits build MODEL CORPUS... --out STORE`."""

from __future__ import annotations

import shlex
import time
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import load_model, prepare, reads_pairs
from knn_logits.cli.machines import device_of_rank, torchrun_rank
from knn_logits.cli.reading import Fields, Told, documents_of
from knn_logits.cli.terminal import Bars, interruptible, print_json, say, tell
from knn_logits.cli.tried import say_tried, tried_as_json
from knn_logits.cli.units import bytes_of, in_bytes, in_time
from knn_logits.errors import ConfigError, KNNLogitsError
from knn_logits.printable import printable
from knn_logits.settings.config import (
    FEWEST_CALIBRATED,
    IndexConfig,
    KNNConfig,
    WindowConfig,
    check_metric,
    suffix_words,
)

if TYPE_CHECKING:
    from knn_logits.building.estimate import Estimate
    from knn_logits.store.datastore import Datastore
    from knn_logits.store.manifest import Manifest

# The first words of a document are taken from so many tokens.
_OPENING = 24


def build(
    model: options.Model,
    corpus: options.Corpus,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="STORE", help="Folder to write; required without --dry-run."),
    ] = None,
    k: options.K = None,
    lmbda: options.Lmbda = None,
    temperature: options.Temperature = None,
    suffix_weight: options.SuffixWeight = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate/--no-calibrate",
            help="Choose k, lmbda, temperature and suffix weight on a sample of the corpus.",
        ),
    ] = True,
    metric: options.Metric = None,
    key: options.Key = "ffn_input",
    index: options.Index = "auto",
    nprobe: options.Nprobe = None,
    budget: options.Budget = None,
    target_recall: options.TargetRecall = None,
    window: Annotated[
        int | None, typer.Option("--window", help="Number of tokens that the model sees at once.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option("--stride", help="Number of tokens by which the window moves on.")
    ] = None,
    concatenate: Annotated[
        bool, typer.Option("--concatenate", help="Join the documents into one stream.")
    ] = False,
    source_prefix: Annotated[
        str,
        typer.Option(
            "--source-prefix", help="Text to put before each source, for models such as T5."
        ),
    ] = "",
    source_lang: Annotated[
        str | None,
        typer.Option(
            "--source-lang", help="Language of the sources, as the tokenizer names it: eng_Latn."
        ),
    ] = None,
    target_lang: Annotated[
        str | None, typer.Option("--target-lang", help="Language of the targets: deu_Latn.")
    ] = None,
    source_field: options.SourceField = "source",
    target_field: options.TargetField = "target",
    text_field: options.TextField = "text",
    id_field: options.IdField = "id",
    title_field: options.TitleField = "title",
    encoding: options.Encoding = None,
    keys: Annotated[
        bool,
        typer.Option(
            "--keys/--no-keys",
            help="Compute the keys now. Without, the model computes them when text needs them.",
        ),
    ] = True,
    keys_dtype: Annotated[
        str, typer.Option("--keys-dtype", help="Precision of the stored keys: float16 or float32.")
    ] = "float16",
    batch_tokens: options.BatchTokens = None,
    license: Annotated[
        str | None, typer.Option("--license", help="Licence of the text, for the manifest.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Where the text is from, for the manifest.")
    ] = None,
    strict: options.Strict = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only estimate the size and the time of the build."),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace an existing datastore, or start an unfinished build again.",
        ),
    ] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    native_index: options.NativeIndex = False,
    ray: options.Ray = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Make a datastore from a corpus.

    Every token that another token precedes becomes an entry: the model's hidden state before it,
    and the token itself. With an encoder-decoder model these are the tokens of the targets.
    --k, --lmbda, --temperature and --suffix-weight are kept as the datastore's settings. Those that
    are not given are chosen by how well they predict a sample of the corpus.
    """
    # Wrong arguments are refused before the model is loaded.
    KNNConfig().with_given(k=k, lmbda=lmbda, temperature=temperature, suffix_weight=suffix_weight)
    index_config = IndexConfig(
        index,
        check_metric(metric) if metric is not None else None,
        nprobe=nprobe,
        seed=seed,
        native=native_index,
        budget=None if budget is None else bytes_of(budget),
        target_recall=target_recall,
    )
    window_config = WindowConfig(window, stride)
    if out is None and not dry_run:
        raise typer.BadParameter("name the folder to write", param_hint="--out")
    from knn_logits.building.builder import build_datastore
    from knn_logits.building.estimate import estimate_build
    from knn_logits.progress import no_progress

    rank = torchrun_rank()
    if rank is not None:
        if dry_run:
            raise ConfigError("--dry-run is for one process: start it without torchrun")
        device = device_of_rank(device)
    started = time.monotonic()
    fields = Fields(text_field, id_field, title_field, source_field, target_field, encoding, strict)
    told = Told()
    with Bars() as bars, interruptible("run the same command again, and it goes on here"):
        # Only the first process reads the corpus and shows progress.
        documents = (
            iter(()) if rank else documents_of(corpus, fields, told, bars, pairs=reads_pairs(model))
        )
        prepare(threads, seed)
        loaded, tokenizer = load_model(
            model, device, dtype, resumes=None if overwrite or dry_run else out
        )
        loading = time.monotonic() - started
        made: dict[str, Any] = {
            "key": key,
            "window": window_config,
            "concatenate": concatenate,
            "source_prefix": source_prefix,
            "source_lang": source_lang,
            "target_lang": target_lang,
            "index": index_config,
            "k": k,
            "lmbda": lmbda,
            "temperature": temperature,
            "suffix_weight": suffix_weight,
            "calibrate": calibrate,
            "store_keys": keys,
            "keys_dtype": keys_dtype,
            "batch_tokens": batch_tokens,
            "threads": threads,
            "progress": no_progress if rank else bars,
        }
        if dry_run or out is None:
            estimate = estimate_build(loaded, tokenizer, documents, **made)
        else:
            try:
                store = build_datastore(
                    loaded,
                    tokenizer,
                    documents,
                    out,
                    **made,
                    overwrite=overwrite,
                    license=license,
                    source=source,
                    skipped=told.skipped,
                    ray=ray,
                    torchrun=rank is not None,
                    on_estimate=lambda found: tell(_before(found), style=None),
                )
            except KNNLogitsError:
                if not rank:
                    raise
                # The first process prints the error of any of them.
                raise typer.Exit(1) from None
    if dry_run or out is None:
        _print_dry_run(estimate, loading, told, json=json)
        return
    if rank:
        return
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
                "tried": tried_as_json(manifest.index),
                "keys": keys,
                "k": manifest.settings.k,
                "lmbda": manifest.settings.lmbda,
                "temperature": manifest.settings.temperature,
                "suffix_weight": manifest.settings.suffix_weight,
                "calibrated": manifest.settings.calibrated,
                "writing": manifest.writing.model_dump() if manifest.writing else None,
                "store": str(store.folder),
            }
        )
        return
    _print_built(store, told, seconds, _next_command(store, model, tokenizer))


def _before(estimate: Estimate) -> str:
    """Says what a build will need, before its keys are computed."""
    return (
        f"{estimate.documents:,} documents, {estimate.tokens:,} tokens, {estimate.entries:,} "
        f"entries: {_needed(estimate)}, about {in_time(estimate.seconds or 0.0)} from now"
    )


def _needed(estimate: Estimate) -> str:
    """Says how much disk and memory the datastore needs, and how long a query takes."""
    if not estimate.needs:
        return f"{in_bytes(estimate.bytes)} of disk, keys on demand"
    first = estimate.needs[0]
    memory = in_bytes(max(first.memory, first.building_memory))
    query = "" if first.milliseconds is None else f", {first.milliseconds:.2g} ms a query"
    return f"{in_bytes(estimate.bytes)} of disk, {memory} of memory, index {first.index}{query}"


def _print_dry_run(estimate: Estimate, loading: float, told: Told, *, json: bool) -> None:
    seconds = loading + (estimate.seconds or 0.0)
    first = estimate.needs[0] if estimate.needs else None
    if json:
        print_json(
            {
                "documents": estimate.documents,
                "tokens": estimate.tokens,
                "entries": estimate.entries,
                "bytes": estimate.bytes,
                "seconds": round(seconds, 3),
                "memory": first.memory if first else None,
                "building_memory": first.building_memory if first else None,
                "milliseconds": first.milliseconds if first else None,
                "skipped": len(told.skipped),
            }
        )
        return
    say(
        f"{estimate.documents:,} documents, {estimate.tokens:,} tokens, {estimate.entries:,} "
        f"entries; the datastore would take {_needed(estimate)} and {in_time(seconds)}; nothing "
        "was written"
    )
    if told.summary:
        say(told.summary)
    if estimate.entries < FEWEST_CALIBRATED:
        say(few(estimate.entries))


def _print_built(store: Datastore, told: Told, seconds: float, following: str) -> None:
    manifest = store.manifest
    say_tried(manifest.index)
    recall = manifest.index.recall
    found = f", recall@{recall.at} {recall.value:.3f}" if recall else ""
    size = sum(record.bytes for record in manifest.files)
    say(
        f"{store.folder}: {manifest.entries:,} entries of {manifest.documents:,} documents in "
        f"{in_time(seconds)} ({manifest.entries / seconds:,.0f} a second), {in_bytes(size)}, index "
        f"{manifest.index.factory}{found}"
    )
    if told.summary:
        say(told.summary)
    if manifest.entries < FEWEST_CALIBRATED:
        say(few(manifest.entries))
    say(_chosen(manifest))
    if manifest.writing is not None and manifest.writing.lmbda != manifest.settings.lmbda:
        say(
            "λ for scoring is the one that predicts the text best; text is written with another, "
            "at which it follows the passages"
        )
    say(f"next: {following}")


def few(entries: int) -> str:
    """Says that a datastore is too small to choose settings on."""
    return (
        f"{entries:,} entries are too few to calibrate the settings for scoring on "
        f"({FEWEST_CALIBRATED} are needed), so the defaults hold; the settings for writing come "
        "from the distances between the entries, and need no calibration"
    )


def _next_command(store: Datastore, model: str, tokenizer: Any) -> str:
    """Returns a command to try next, which continues the beginning of a typical document."""
    chosen = _typical(store)
    document = store.documents[chosen]
    if document.source is not None:
        prompt = " ".join(_plain_words(document.source))[:200]
    else:
        first = sum(store.documents[number].length for number in range(chosen))
        ids = store.tokens[first : first + min(document.length, _OPENING)].tolist()
        words = _plain_words(tokenizer.decode(ids, skip_special_tokens=True))
        # The document has to go on after these words.
        prompt = " ".join(words[: max(1, min(5, len(words) - 2))])
    call = ["knn-logits", "generate", model, str(store.folder), "--prompt", prompt]
    return " ".join(shlex.quote(printable(one)) for one in call) + " --compare --explain"


def _typical(store: Datastore) -> int:
    """Returns the number of the document of median length, where each counts by its tokens."""
    lengths = [store.documents[number].length for number in range(store.manifest.documents)]
    longest = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    passed = 0
    for number in longest:
        passed += lengths[number]
        if 2 * passed >= sum(lengths):
            return number
    return 0


def _plain_words(text: str) -> list[str]:
    """Returns the first words in a row without control characters, or "The" if there are none."""
    words = groupby(text.split(), lambda word: "\ufffd" not in printable(word))
    return next((list(row) for plain, row in words if plain), ["The"])


def _chosen(manifest: Manifest) -> str:
    """Describes the settings that hold where none are given."""
    own, writing = manifest.settings, manifest.writing
    how = "chosen by likelihood" if own.calibrated else "not calibrated"
    line = f"settings for scoring ({how}): k {own.k}, λ {own.lmbda:g}, τ {own.temperature:g}"
    line += suffix_words(own.suffix_weight)
    if writing is not None:
        line += f"; for writing: k {writing.k}, λ {writing.lmbda:g}, τ {writing.temperature:g}"
        line += suffix_words(writing.suffix_weight)
        line += ", following passages" if writing.retomaton else ""
    return line
