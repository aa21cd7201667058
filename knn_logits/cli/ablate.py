"""`knn-logits ablate MODEL CORPUS EVALTEXT --out FOLDER`."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.loading import load_model, prepare
from knn_logits.cli.reading import Fields, read_texts
from knn_logits.cli.terminal import Bars, interruptible, print_json, say
from knn_logits.errors import ConfigError
from knn_logits.settings.config import DEFAULT_K


def ablate(
    model: options.Model,
    corpus: Annotated[
        str, typer.Argument(metavar="CORPUS", help="Text of the datastore, as for build.")
    ],
    text: Annotated[
        str, typer.Argument(metavar="EVALTEXT", help="Other text like it, to be predicted.")
    ],
    out: Annotated[str, typer.Option("--out", metavar="FOLDER", help="Folder of the report.")],
    entries: Annotated[
        int, typer.Option("--entries", min=256, help="Tokens of the corpus, at most.")
    ] = 100_000,
    tokens: Annotated[
        int, typer.Option("--tokens", min=256, help="Tokens of the text, at most.")
    ] = 20_000,
    k: Annotated[int, typer.Option("--k", min=1, help="Neighbors a query, at most.")] = DEFAULT_K,
    study: Annotated[
        list[str] | None,
        typer.Option("--study", metavar="NAME", help="Only this study; may be given repeatedly."),
    ] = None,
    text_field: options.TextField = "text",
    encoding: options.Encoding = None,
    strict: options.Strict = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Make the papers' studies again on a model and texts of one's own, as one report.

    Store size, k, lmbda, temperature, where the key is read, metric, precision, approximation, the
    oracle, and which tokens the neighbors help. A run that was stopped goes on with the same
    command.
    """
    if corpus == text:
        raise ConfigError("EVALTEXT is the corpus: give other text like it")
    documents = read_texts([corpus, text], Fields(text_field, encoding=encoding, strict=strict))
    prepare(threads, seed)
    loaded, tokenizer = load_model(model, device, dtype)
    from knn_logits.lab.ablation.running import ablate as make_ablation

    with Bars() as bars, interruptible("what is done is kept; the same command goes on"):
        done = make_ablation(
            loaded,
            tokenizer,
            documents[corpus],
            documents[text],
            out,
            entries=entries,
            tokens=tokens,
            k=k,
            studies=study,
            seed=seed,
            command=shlex.join(["knn-logits", *sys.argv[1:]]),
            progress=bars,
        )
    if json:
        print_json(done.to_dict())
        return
    for finding in done.findings.values():
        holds = {True: "holds", False: "does not hold", None: "-"}[finding.holds]
        say(f"{finding.title}: {holds}. {finding.here}")
    say(f"written: {done.files[0]}")
