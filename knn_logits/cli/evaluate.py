"""`knn-logits eval MODEL STORE TEXT...` and `tune MODEL STORE TEXT...`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import yaml

from knn_logits.cli.bars import Bars
from knn_logits.cli.corpus_options import CorpusOptions
from knn_logits.cli.loading import Run, open_datastore, reads_pairs
from knn_logits.cli.memory import MemoryOptions
from knn_logits.cli.options import Json, Model, Settable, command
from knn_logits.cli.terminal import answer, in_documents
from knn_logits.corpus.parsers import looks_like_a_file
from knn_logits.corpus.reading import checked_paths
from knn_logits.errors import ConfigError, StorageError
from knn_logits.printable import one_line
from knn_logits.settings.config import PassConfig
from knn_logits.settings.declaration import setting
from knn_logits.settings.registry import check_settings, settings_line
from knn_logits.store import layout

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from knn_logits.measure.results import Evaluation
    from knn_logits.measure.translation import Translations
    from knn_logits.measure.tuner import Tuning

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="STORE... TEXT...",
        help="Datastores, then the text: files, folders or hf:DATASET, as for build.",
    ),
]
_CACHE_HELP = "Keep forward passes here for other runs of the same model and text."
_OVERLAP_HELP = "Skip the check for evaluation text in the datastore."


def _stores_and_texts(paths: list[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments; the first is a datastore, so that a wrong path is reported as one."""
    from knn_logits.store.hub_client import hub_name

    stores = paths[:1]
    texts: list[str] = []
    for path in paths[1:]:
        on_hub = hub_name(path) is not None and not looks_like_a_file(path)
        (stores if on_hub or (Path(path) / layout.MANIFEST).is_file() else texts).append(path)
    if not texts:
        last = stores[-1]
        missing = len(stores) > 1 and not Path(last).exists()
        raise ConfigError(
            "no text given: pass one or more texts after the datastore"
            + (f" ({last} does not exist, so it was taken for a datastore)" if missing else "")
        )
    checked_paths(texts)
    return stores, texts


def read_config(context: typer.Context, file: str | None) -> str | None:
    """Makes the values of a file the command's defaults; the command line overrides them."""
    if file is None:
        return None
    try:
        text = Path(file).read_text("utf-8")
        values = tomllib.loads(text) if Path(file).suffix == ".toml" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file} cannot be read as TOML or YAML: {reason}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} has no names and values: write lines such as `lmbda: 0.25`")
    names: dict[str, str] = {}
    for parameter in context.command.params:
        for name in (parameter.name, *parameter.opts):
            names[str(name).lstrip("-").replace("-", "_")] = str(parameter.name)
    known: dict[str, Any] = {}
    for key, value in values.items():
        option = names.get(str(key).replace("-", "_"))
        if option in (None, "config"):
            raise ConfigError(f"{file}: {key!r} is no option of `{context.info_name}`")
        known[str(option)] = value
    context.default_map = known
    return file


Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Options and arguments from a TOML or YAML file; the command line overrides them.",
        is_eager=True,
        callback=read_config,
    ),
]


@command
def evaluate(
    model: Model,
    paths: Paths,
    memory: MemoryOptions,
    passes: PassConfig,
    fields: CorpusOptions,
    run: Run,
    bleu: bool = setting(
        True, "For encoder-decoder models: translate and compute BLEU.", option="--bleu/--no-bleu"
    ),
    num_beams: int = setting(5, "Number of beams for --bleu.", least=1),
    per_token: str | None = setting(
        None, "Save a row for each token as parquet: log p, p_kNN, λ, sources.", metavar="FILE"
    ),
    against: str | None = setting(
        None, "Compare with another run's --per-token file (paired bootstrap).", metavar="FILE"
    ),
    cache: str | None = setting(None, _CACHE_HELP, metavar="FOLDER"),
    allow_overlap: bool = setting(False, _OVERLAP_HELP),
    json: Json = False,
    config: Config = None,  # noqa: ARG001 - which sets the others
) -> None:
    """Evaluate the perplexity of a text with and without kNN.

    Every token is scored once, in the datastore's windows unless --window, --stride or
    --concatenate is set. With an encoder-decoder model, the sources are also translated and
    scored by BLEU and chrF (sacrebleu).
    """
    stores, names = _stores_and_texts(paths)
    opened = memory.open(stores)
    pairs = reads_pairs(model)
    texts: Any = fields.texts(names, pairs=pairs)
    translates = pairs and bleu
    if translates:
        from knn_logits.measure.translation import sacrebleu

        sacrebleu()  # raises here if the package is missing
        texts = list(texts)
    if per_token is not None:
        _check_writable(per_token)
    loaded, tokenizer = run.load(model, opened.stores[0].folder)
    from knn_logits.measure.perplexity import evaluate as evaluate_texts
    from knn_logits.measure.translation import evaluate_translations

    datastores, settings = opened.stores, opened.keywords(run.threads)
    how: dict[str, Any] = {**passes.keywords(), "device": str(loaded.device), "cache": cache}
    how |= {"allow_overlap": allow_overlap, "per_token": per_token, "against": against}
    with Bars("nothing was written") as bars, opened.searching():
        result = evaluate_texts(
            loaded, tokenizer, datastores, texts, progress=bars, **how, **settings
        )
        content, lines = result.to_dict(), list(_evaluation_lines(result))
        if translates:
            settings["num_beams"] = num_beams
            translated = evaluate_translations(
                loaded, tokenizer, datastores, texts, progress=bars, **settings
            )
            content["translations"] = vars(translated)
            lines += _translation_lines(translated)
    answer(json, content, *lines)


def _check_writable(path: str) -> None:
    """Refuses a file that cannot be written, before hours of work."""
    try:
        Path(path).open("ab").close()
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror}); choose another location"
        ) from error


def _evaluation_lines(result: Evaluation) -> Iterator[str]:
    of = result.perplexity
    yield (
        f"perplexity of {result.tokens:,} tokens of {in_documents(result.documents)}: "
        f"{_number(of.lm)} by the model, {_number(of.knn)} by the neighbors, "
        f"{_number(of.interpolated)} by the mixture"
    )
    if result.interval is not None and of.lm and of.interpolated:
        yield f"the mixture by the model: {_change(of.interpolated / of.lm, result.interval)}"
    if result.against is not None:
        drawn = f"of {result.against['count']:,} {result.against['units']}"
        change = _change(result.against["ratio"], result.against["interval"])
        yield f"perplexity against the other run: {change}, {drawn}"
    yield one_line(", ".join(f"{name} {value}" for name, value in result.settings.items()))
    saved = f", {result.searches_saved:,} saved" if result.searches_saved else ""
    yield f"{result.tokens_per_second:,.0f} tokens a second, {result.searches:,} searches{saved}"


def _translation_lines(result: Translations) -> Iterator[str]:
    for system, scores in (("model", result.lm), ("with kNN", result.knn)):
        if scores is not None:
            yield f"{system}: BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}"
    for name, signature in result.signatures.items():
        yield f"{name} of {result.pairs:,} pairs: {signature}"


def _number(value: float | None) -> str:
    """Formats a perplexity with a sensible number of digits. None is infinity."""
    if value is None:
        return "∞"
    return f"{value:,.{4 if value < 10 else 2 if value < 1000 else 0}f}"


def _change(ratio: float, interval: tuple[float, float] | None) -> str:
    low, high = interval or (math.nan, math.nan)
    return f"{ratio - 1:+.2%}, 95% interval {low - 1:+.2%} to {high - 1:+.2%}"


@command
def tune(
    model: Model,
    paths: Paths,
    fields: CorpusOptions,
    settings: Annotated[Any, Settable("tune")],
    passes: PassConfig,
    run: Run,
    k: int | None = setting(None, "Largest k to try."),
    gate: Literal["meta-k"] | None = setting(None, "Also fit a gate."),
    write: bool = setting(
        False, "Store the choice in the datastore, which then uses it in place of its gate."
    ),
    allow_overlap: bool = setting(False, _OVERLAP_HELP),
    cache: str | None = setting(None, _CACHE_HELP, metavar="FOLDER"),
    json: Json = False,
    config: Config = None,  # noqa: ARG001 - which sets the others
) -> None:
    """Tune k, lmbda and temperature on texts, and fit a gate.

    Use texts similar to your application that are not in the datastore. Half of the documents
    are used for tuning, the other half for evaluation.
    """
    from knn_logits.measure.tuner import tune as tune_settings
    from knn_logits.mixture.presets import resolve

    check_settings({"k": k})
    stores, names = _stores_and_texts(paths)
    if len(stores) > 1:
        raise ConfigError("settings belong to one datastore: tune each datastore separately")
    datastore = open_datastore(stores[0])
    resolve([datastore], settings)
    texts = fields.texts(names, pairs=reads_pairs(model))
    loaded, tokenizer = run.load(model, datastore.folder)
    how: dict[str, Any] = {**settings, **passes.keywords(), "threads": run.threads}
    how |= {"device": str(loaded.device), "cache": cache, "k": k, "gate": gate, "write": write}
    how["allow_overlap"] = allow_overlap
    with Bars("the datastore keeps its settings") as bars:
        result = tune_settings(loaded, tokenizer, datastore, texts, progress=bars, **how)
    answer(json, result.to_dict() | {"written": write}, *_tuning_lines(result, stores[0], write))


def _tuning_lines(result: Tuning, store: str, written: bool) -> Iterator[str]:
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
        yield f"perplexity with the gate: {result.gate_perplexity:.2f}"
    if written:
        yield f"{store}: written in place of its settings and its gate, and used from now on"
    else:
        yield "add --write to store them in the datastore, in place of its settings and its gate"
