"""`knn-logits eval MODEL STORE TEXT...`, and the options that it shares with `tune`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from knn_logits.cli.bars import Bars
from knn_logits.cli.corpus_options import CorpusOptions
from knn_logits.cli.explain import check_writable
from knn_logits.cli.loading import RunOptions, reads_pairs
from knn_logits.cli.memory import MemoryOptions
from knn_logits.cli.options import Json, Model, command
from knn_logits.cli.terminal import answer
from knn_logits.corpus.formats import looks_like_a_file
from knn_logits.corpus.reading import checked_paths
from knn_logits.errors import ConfigError
from knn_logits.settings.declaration import setting
from knn_logits.settings.passes import PassConfig
from knn_logits.store import layout
from knn_logits.store.hub_client import hub_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="STORE... TEXT...",
        help="Datastores, then texts: files, folders or hf:DATASET, as for build. Each text is "
        "evaluated separately.",
    ),
]
CACHE_HELP = "Keep forward passes here for other runs of the same model and text."
OVERLAP_HELP = "Skip the check for evaluation text in the datastore."


def stores_and_texts(paths: list[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments; the first is a datastore, so that a wrong path is reported as one."""
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
    run: RunOptions,
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
    cache: str | None = setting(None, CACHE_HELP, metavar="FOLDER"),
    allow_overlap: bool = setting(False, OVERLAP_HELP),
    json: Json = False,
    config: Config = None,  # noqa: ARG001 - which sets the others
) -> None:
    """Evaluate the perplexity of texts with and without kNN.

    Every token is scored once, in the datastore's windows unless --window, --stride or
    --concatenate is set. With an encoder-decoder model, the sources are also translated and
    scored by BLEU and chrF (sacrebleu).
    """
    stores, names = stores_and_texts(paths)
    opened = memory.open(stores)
    pairs = reads_pairs(model)
    texts = fields.texts(names, pairs=pairs)
    translates = pairs and bleu
    if translates:
        from knn_logits.measure.translation import sacrebleu

        sacrebleu()  # raises here if the package is missing
        texts = {name: list(documents) for name, documents in texts.items()}
    if per_token is not None:
        check_writable(per_token)
    loaded, tokenizer = run.load(model)
    from knn_logits.cli.results_table import plain_table, plain_translations
    from knn_logits.measure.perplexity import evaluate as evaluate_texts
    from knn_logits.measure.translation import evaluate_translations

    datastores, settings = opened.stores, opened.keywords(run.threads)
    how: dict[str, Any] = {**passes.keywords(), "device": str(loaded.device), "seed": run.seed}
    how |= {
        "cache": cache,
        "allow_overlap": allow_overlap,
        "per_token": per_token,
        "against": against,
    }
    measured = []
    with Bars("nothing was written") as bars, opened.searching():
        result = evaluate_texts(
            loaded, tokenizer, datastores, texts, progress=bars, **how, **settings
        )
        if translates:
            settings["num_beams"] = num_beams
            measured = evaluate_translations(
                loaded, tokenizer, datastores, texts, progress=bars, **settings
            )
    content = result.to_dict()
    if measured:
        content["translations"] = [text.to_dict() for text in measured]
    lines = [plain_table(result), *(["", plain_translations(measured)] if measured else [])]
    answer(json, content, *lines)
