"""`knn-logits tune MODEL STORE TEXT...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.evaluate import Paths, stores_and_texts
from knn_logits.cli.loading import load_model, open_datastore, prepare, reads_pairs
from knn_logits.cli.reading import Fields, read_texts
from knn_logits.cli.terminal import Bars, interruptible, print_json, say
from knn_logits.errors import ConfigError
from knn_logits.settings.config import KNNConfig, WindowConfig, suffix_words

if TYPE_CHECKING:
    from knn_logits.measure.tune.infini_gram import InfiniGramFit
    from knn_logits.measure.tune.result import Tuning


def tune(
    model: options.Model,
    paths: Paths,
    k: Annotated[int | None, typer.Option("--k", help="The largest k to try.")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Store the chosen settings in the datastore.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Store them even if they are not significantly better."),
    ] = False,
    allow_overlap: options.AllowOverlap = False,
    gate: Annotated[
        str | None,
        typer.Option(
            "--gate",
            help="Also fit a gate: distance, learned, meta-k, rescorer, or constant with --skip. "
            "The word none removes a stored gate.",
        ),
    ] = None,
    skip: Annotated[
        float | None,
        typer.Option("--skip", metavar="SHARE", help="Share of searches that the gate skips."),
    ] = None,
    skip_by: Annotated[
        str,
        typer.Option("--skip-by", help="Skip by a learned rule (learned), or by the confidence."),
    ] = "learned",
    infini_gram: Annotated[
        bool,
        typer.Option(
            "--infini-gram",
            help="Fit the shares of the ∞-gram in place of the rest, at the settings stored.",
        ),
    ] = False,
    bleu: Annotated[
        int | None,
        typer.Option(
            "--bleu",
            min=1,
            metavar="N",
            help="Encoder-decoder models: translate with the N likeliest settings, choose by BLEU.",
        ),
    ] = None,
    num_beams: Annotated[
        int, typer.Option("--num-beams", min=1, help="Number of beams for --bleu.")
    ] = 1,
    text_field: options.TextField = "text",
    encoding: options.Encoding = None,
    source_field: options.SourceField = "source",
    target_field: options.TargetField = "target",
    plots: Annotated[
        str | None,
        typer.Option("--plots", metavar="FOLDER", help="Write heat map, curve and numbers there."),
    ] = None,
    nprobe: options.Nprobe = None,
    refine: options.Refine = False,
    suffix_weight: options.SuffixWeight = None,
    weights: options.Weights = None,
    native_index: options.NativeIndex = False,
    window: options.Window = None,
    stride: options.Stride = None,
    concatenate: options.Concatenate = None,
    batch_tokens: options.BatchTokens = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Choose k, lmbda and temperature by how well they predict texts, and fit a gate.

    The texts should resemble those that the model will meet, and not be part of the datastore. The
    settings are chosen on half of the documents. The perplexity is measured on the other half.
    """
    from knn_logits.measure.tune.wanted import Wanted

    # Wrong arguments are refused before the model is loaded.
    KNNConfig().with_given(k=k, nprobe=nprobe, suffix_weight=suffix_weight)
    shares = options.parse_weights(weights)
    Wanted.of(gate, skip, skip_by)
    if infini_gram and (k, gate, skip, bleu, plots) != (None,) * 5:
        raise ConfigError(
            "--infini-gram fits shares at the settings stored: leave out --k, --gate, --skip, "
            "--bleu and --plots"
        )
    windows = WindowConfig(window, stride)
    stores, names = stores_and_texts(paths)
    if write and len(stores) > 1:
        raise ConfigError(
            "--write can store settings in one datastore only: tune each datastore by itself"
        )
    datastores = [open_datastore(store) for store in stores]
    pairs = reads_pairs(model)
    if bleu is not None:
        from knn_logits.measure.scores import sacrebleu

        sacrebleu()  # raises here if the package is missing
    fields = Fields(
        text_field, source=source_field, target=target_field, encoding=encoding, strict=strict
    )
    texts = read_texts(names, fields, pairs=pairs)
    if plots is not None:
        # This is checked here, before hours of work.
        from knn_logits.measure.figures import check_writable, new_figure

        new_figure(1, 1)
        check_writable(plots)
    prepare(threads, seed)
    loaded, tokenizer = load_model(model, device, dtype)
    # How the texts are read and searched, and when the choice is written.
    given: dict[str, Any] = {
        "nprobe": nprobe,
        "refine": refine,
        "suffix_weight": suffix_weight,
        "weights": shares,
        "native_index": native_index,
        "window": windows,
        "concatenate": concatenate,
        "batch_tokens": batch_tokens,
        "device": str(loaded.device),
        "threads": threads,
        "seed": seed,
        "write": write,
        "force": force,
        "allow_overlap": allow_overlap,
    }
    if infini_gram:
        from knn_logits.measure.tune.infini_gram import fit_infini_gram

        with Bars() as bars, interruptible("the datastore keeps its settings"):
            found = fit_infini_gram(loaded, tokenizer, datastores, texts, progress=bars, **given)
        if json:
            print_json(found.to_dict())
        else:
            _say_shares(found, stores[0], written=write and found.refused is None)
        if found.refused is not None:
            raise typer.Exit(1)
        return
    from knn_logits.measure.tune.tuner import tune as tune_settings

    with Bars() as bars, interruptible("the datastore keeps its settings"):
        result = tune_settings(
            loaded,
            tokenizer,
            datastores,
            texts,
            k=k,
            gate=gate,  # type: ignore[arg-type]  # checked above, as the next but one
            skip=skip,
            skip_by=skip_by,  # type: ignore[arg-type]
            bleu=bleu,
            num_beams=num_beams,
            progress=bars,
            **given,
        )
    if not json:
        _say(result, stores[0], skip is not None)
    files = []
    try:
        if plots is not None:
            from knn_logits.measure.tune.plots import write_plots

            files = write_plots(result, plots)
    finally:
        # The choice is printed even if a file cannot be written.
        if json:
            print_json({**result.to_dict(), "files": [str(path) for path in files]})
    if not json:
        for path in files:
            say(f"written: {path}")
    if result.refused is not None:
        # A warning has said why.
        raise typer.Exit(1)


def _say(result: Tuning, store: str, skips: bool) -> None:
    held = result.held_out
    say(
        f"k {result.k}, lmbda {result.lmbda:g}, temperature {result.temperature:.4g}"
        f"{suffix_words(result.suffix_weight)}: the best of {result.grid.settings:,} settings on "
        f"{result.chosen_on.tokens:,} tokens"
    )
    say(
        f"perplexity on {held.tokens:,} other tokens: {held.perplexity:.2f}; with the datastore's "
        f"settings {held.before:.2f}, without kNN {held.lm:.2f}"
    )
    if result.bleu is not None:
        scores = result.bleu.held_out
        say(
            f"chosen by BLEU among {len(result.bleu.trials)} settings on {result.bleu.pairs} "
            f"pairs; BLEU on {result.bleu.held_out_pairs} others: {scores['chosen']:.2f}; with the "
            f"datastore's settings {scores['before']:.2f}, without kNN {scores['lm']:.2f}"
        )
    if result.gate is not None:
        found = result.gate
        low, high = found.interval or (None, None)
        between = f", 95% interval {low - 1:+.1%} to {high - 1:+.1%}" if low and high else ""
        sample = f", on {found.tokens:,} of these tokens" if found.tokens < held.tokens else ""
        skipped = f"; {found.skipped:.1%} of the searches left out" if skips else ""
        say(
            f"gate ({found.kind}): {found.perplexity:.2f}, {found.ratio - 1:+.1%} of the best "
            f"number's {found.constant:.2f}{between}{sample}{skipped}"
        )
    for name in result.at_the_edge:
        say(f"the best {name} is the last value tried; a value beyond it may be better")
    if result.written:
        say(f"{store}: settings written")
    elif result.refused is None:
        say(_advice(result))


def _say_shares(found: InfiniGramFit, store: str, *, written: bool) -> None:
    shares = ", ".join(
        f"{share:g} from {length}"
        for length, share in zip(found.record.lengths, found.record.shares, strict=True)
    )
    say(f"share of the ∞-gram by the tokens that match: {shares}; from {found.tokens:,} tokens")
    p = found.perplexity
    say(
        f"perplexity on {found.held_out:,} other tokens: {p['with']:.2f}; without the ∞-gram "
        f"{p['without']:.2f}, without the neighbors {p['without_knn']:.2f}, without both "
        f"{p['lm']:.2f}"
    )
    if written:
        say(f"{store}: shares written; --infini-gram auto takes them")
    elif found.refused is None and found.overlap is not None and found.overlap.held:
        say("tune on text that the datastore does not hold")
    elif found.refused is None:
        say("add --write to store them in the datastore, for --infini-gram auto")


def _advice(result: Tuning) -> str:
    """Says what to do with the choice."""
    if result.overlap is not None and result.overlap.held:
        return "tune on text that the datastore does not hold"
    verdict = result.verdict
    if verdict is None or verdict.better or result.bleu is not None:
        return "add --write to store them in the datastore"
    return verdict.reason("the choice", "the stored settings")
