"""`knn-logits tune MODEL STORE TEXT...`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from knn_logits.cli.bars import Bars
from knn_logits.cli.corpus_options import CorpusOptions
from knn_logits.cli.evaluate import CACHE_HELP, OVERLAP_HELP, Config, Paths, stores_and_texts
from knn_logits.cli.loading import RunOptions, open_datastore, reads_pairs
from knn_logits.cli.options import Json, Model, Settable, command
from knn_logits.cli.terminal import answer
from knn_logits.errors import ConfigError
from knn_logits.settings.declaration import setting
from knn_logits.settings.passes import PassConfig
from knn_logits.settings.registry import check_settings, settings_line

if TYPE_CHECKING:
    from knn_logits.measure.tune.tuner import Tuning


@command
def tune(
    model: Model,
    paths: Paths,
    fields: CorpusOptions,
    settings: Annotated[Any, Settable("tune")],
    passes: PassConfig,
    run: RunOptions,
    k: int | None = setting(None, "Largest k to try."),
    gate: str | None = setting(
        None, "Also fit a gate: meta-k; none removes the stored gate.", metavar="KIND"
    ),
    write: bool = setting(False, "Store the chosen settings in the datastore."),
    force: bool = setting(False, "Store them even if they are not significantly better."),
    allow_overlap: bool = setting(False, OVERLAP_HELP),
    cache: str | None = setting(None, CACHE_HELP, metavar="FOLDER"),
    json: Json = False,
    config: Config = None,  # noqa: ARG001 - which sets the others
) -> None:
    """Tune k, lmbda and temperature on texts, and fit a gate.

    Use texts similar to your application that are not in the datastore. Half of the documents
    are used for tuning, the other half for evaluation.
    """
    from knn_logits.measure.tune.halves import check_gate
    from knn_logits.mixture.presets import resolve

    check_settings({"k": k})
    check_gate(gate)
    stores, names = stores_and_texts(paths)
    if len(stores) > 1:
        raise ConfigError("settings belong to one datastore: tune each datastore separately")
    datastore = open_datastore(stores[0])
    resolve([datastore], settings)
    texts = fields.texts(names, pairs=reads_pairs(model))
    loaded, tokenizer = run.load(model)
    how: dict[str, Any] = {**settings, **passes.keywords(), "seed": run.seed}
    how |= {"threads": run.threads, "device": str(loaded.device), "cache": cache}
    how |= {"k": k, "gate": gate, "write": write, "force": force, "allow_overlap": allow_overlap}
    from knn_logits.measure.tune.tuner import tune as tune_settings

    with Bars("the datastore keeps its settings") as bars:
        result = tune_settings(loaded, tokenizer, datastore, texts, progress=bars, **how)
    answer(json, result.to_dict(), *_lines(result, stores[0]))
    if result.refused is not None:
        # A warning has said why.
        raise typer.Exit(1)


def _lines(result: Tuning, store: str) -> Iterator[str]:
    held = result.held_out
    yield (
        f"{settings_line(result.chosen)}: the best of {result.grid.settings:,} settings on "
        f"{result.chosen_on.tokens:,} tokens"
    )
    yield (
        f"perplexity on {held.tokens:,} other tokens: {held.perplexity:.2f}; with the stored k, λ "
        f"and τ {held.before:.2f}, without kNN {held.lm:.2f}"
    )
    if result.gate is not None:
        gate, verdict = result.gate, result.gate.verdict
        low, high = verdict.interval or (None, None)
        between = f", 95% interval {low - 1:+.1%} to {high - 1:+.1%}" if low and high else ""
        yield (
            f"gate: {gate.perplexity:.2f}, {verdict.ratio - 1:+.1%} of the best number's "
            f"{gate.constant:.2f}{between}"
        )
    if result.written:
        yield f"{store}: settings written"
    elif result.refused is None:
        yield _advice(result)


def _advice(result: Tuning) -> str:
    if result.overlap is not None and result.overlap.held:
        return "tune on text that is not in the datastore"
    verdict = result.verdict
    if verdict is None or verdict.better:
        return "add --write to store them in the datastore"
    return verdict.reason("the choice", "the stored settings")
