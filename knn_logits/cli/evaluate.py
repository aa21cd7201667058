"""`knn-logits eval MODEL STORE TEXT...`."""

from __future__ import annotations

import shlex
import sys
from json import dumps as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import load_model, open_datastore, prepare, reads_pairs
from knn_logits.cli.machines import partial_answers, searching, spread_indexes
from knn_logits.cli.mixture import mixture_settings
from knn_logits.cli.reading import Fields, read_texts
from knn_logits.cli.terminal import Bars, interruptible, print_json, say
from knn_logits.corpus.formats import looks_like_a_file
from knn_logits.errors import ConfigError
from knn_logits.settings.config import WindowConfig
from knn_logits.store import layout
from knn_logits.store.hub_client import hub_name

if TYPE_CHECKING:
    from knn_logits.measure.translation import Translations

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="STORE... TEXT...",
        help="Folders of datastores, then texts: files, folders or hf:DATASET, as for build. Every "
        "text gets its own result.",
    ),
]


def stores_and_texts(paths: list[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments into datastores and texts.

    A folder with a manifest is a datastore, and so is org/name if no such path exists. The first
    argument always counts as a datastore, so that a wrong path is reported as a wrong datastore.

    Raises:
        ConfigError: when no text is left.
    """
    stores = paths[:1]
    texts: list[str] = []
    for path in paths[1:]:
        on_hub = hub_name(path) is not None and not looks_like_a_file(path)
        (stores if on_hub or (Path(path) / layout.MANIFEST).is_file() else texts).append(path)
    if not texts:
        last = stores[-1]
        missing = len(stores) > 1 and not Path(last).exists()
        raise ConfigError(
            "no text is given: name one or more texts after the datastore"
            + (f" ({last} does not exist here, so it is taken for a datastore)" if missing else "")
        )
    return stores, texts


def write_translations(found: list[Translations], file: str) -> Path:
    """Writes the translations: one line for each pair and each number of beams."""
    from knn_logits.measure.figures import writing

    path = Path(file)
    lines = [
        json_text({"text": one.name, "num_beams": one.num_beams, **row}, ensure_ascii=False)
        for one in found
        for row in one.texts
    ]
    with writing(path):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def evaluate(
    model: options.Model,
    paths: Paths,
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
    window: options.Window = None,
    stride: options.Stride = None,
    concatenate: options.Concatenate = None,
    batch_tokens: options.BatchTokens = None,
    bleu: Annotated[
        bool,
        typer.Option(
            "--bleu/--no-bleu", help="Encoder-decoder models: translate and compute BLEU."
        ),
    ] = True,
    num_beams: Annotated[
        list[int] | None,
        typer.Option(
            "--num-beams",
            min=1,
            help="Number of beams for --bleu; may be repeated. [default: 1 and 5]",
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Number of sources translated at once.")
    ] = 16,
    translations: Annotated[
        str | None,
        typer.Option(
            "--translations", metavar="FILE", help="Write the translations there, as JSON lines."
        ),
    ] = None,
    text_field: options.TextField = "text",
    encoding: options.Encoding = None,
    source_field: options.SourceField = "source",
    target_field: options.TargetField = "target",
    report: Annotated[
        str | None,
        typer.Option(
            "--report", metavar="FOLDER", help="Write a report with table and plot there."
        ),
    ] = None,
    allow_overlap: options.AllowOverlap = False,
    strict: options.Strict = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Measure how well the model, its neighbors and their mixture predict texts.

    Every token is scored once. Documents are read in the datastore's windows unless --window,
    --stride and --concatenate say otherwise. With an encoder-decoder model the command also
    translates the sources, and reports BLEU and chrF by sacrebleu.
    """
    # Wrong arguments are refused before the model is loaded.
    windows = WindowConfig(window, stride)
    stores, names = stores_and_texts(paths)
    indexes = spread_indexes(ray, shards, replicas, partial)
    datastores = [open_datastore(store) for store in stores]
    mixture = mixture_settings(locals(), datastores, scoring=True)
    pairs = reads_pairs(model)
    texts: dict[str, Any] = read_texts(
        names,
        Fields(
            text_field,
            source=source_field,
            target=target_field,
            encoding=encoding,
            strict=strict,
        ),
        pairs=pairs,
    )
    if pairs and bleu:
        from knn_logits.measure.scores import sacrebleu

        sacrebleu()  # raises here if the package is missing
        texts = {name: list(documents) for name, documents in texts.items()}
    # This is checked here, before hours of work.
    from knn_logits.measure.figures import check_writable, new_figure

    if report is not None:
        new_figure(1, 1)
        check_writable(report)
    if translations is not None:
        check_writable(translations, folder=False)
    prepare(threads, seed)
    loaded, tokenizer = load_model(model, device, dtype)
    from knn_logits.measure.perplexity import evaluate as evaluate_texts

    settings: dict[str, Any] = {
        **mixture,
        "native_index": native_index,
        "indexes": indexes,
        "threads": threads,
    }
    with Bars() as bars, interruptible("nothing was written"), searching(indexes, datastores):
        result = evaluate_texts(
            loaded,
            tokenizer,
            datastores,
            texts,
            window=windows,
            concatenate=concatenate,
            batch_tokens=batch_tokens,
            device=str(loaded.device),
            seed=seed,
            allow_overlap=allow_overlap,
            progress=bars,
            **settings,
        )
        written = None
        if pairs and bleu:
            from knn_logits.measure.translation import evaluate_translations

            written = evaluate_translations(
                loaded,
                tokenizer,
                datastores,
                texts,
                num_beams=num_beams or (1, 5),
                batch_size=batch_size,
                progress=bars,
                **settings,
            )
    lacking = partial_answers(indexes)
    if not json:
        from knn_logits.measure.table import plain_table, plain_translations

        say(plain_table(result))
        if written is not None:
            say("\n" + plain_translations(written))
    files = []
    try:
        if report is not None:
            from knn_logits.measure.report import write_report

            command = shlex.join(["knn-logits", *sys.argv[1:]])
            files = write_report(result, report, command, written)
        if written is not None and translations is not None:
            files.append(write_translations(written, translations))
    finally:
        # The result is printed even if a file cannot be written.
        if json:
            more = {} if written is None else {"translations": [one.to_dict() for one in written]}
            print_json(
                {**result.to_dict(), **more, **lacking, "files": [str(path) for path in files]}
            )
    if not json:
        for path in files:
            say(f"written: {path}")
