"""The subcommands by name."""

from __future__ import annotations

import typer
from typer.main import get_command

from knn_logits._version import __version__
from knn_logits.cli.build import build
from knn_logits.cli.chat import chat
from knn_logits.cli.editing import add, compact, merge, remove, sync
from knn_logits.cli.estimate import estimate
from knn_logits.cli.evaluate import evaluate
from knn_logits.cli.explain import explain
from knn_logits.cli.generate import generate
from knn_logits.cli.hub import catalog, pull, push
from knn_logits.cli.indexing import cluster, index
from knn_logits.cli.info import info, verify
from knn_logits.cli.lab import ablate, distill, import_store
from knn_logits.cli.page import page
from knn_logits.cli.serve import serve
from knn_logits.cli.terminal import say
from knn_logits.cli.tune import tune

app = typer.Typer(
    name="knn-logits",
    help="A memory for language models: kNN-LM in generate(), with the source of every word.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for name, function in {
    "build": build,
    "estimate": estimate,
    "add": add,
    "sync": sync,
    "remove": remove,
    "compact": compact,
    "index": index,
    "cluster": cluster,
    "merge": merge,
    "verify": verify,
    "generate": generate,
    "chat": chat,
    "explain": explain,
    "eval": evaluate,
    "tune": tune,
    "ablate": ablate,
    "distill": distill,
    "info": info,
    "app": page,
    "serve": serve,
    "import": import_store,
    "pull": pull,
    "push": push,
    "catalog": catalog,
}.items():
    app.command(name)(function)


def _version(show: bool) -> None:
    if show:
        say(f"knn-logits {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and leave."
    ),
) -> None:
    """A memory for language models: kNN-LM in generate(), with the source of every word."""


# Reading every command's options takes a tenth of a second, so it is done once in a process.
command = get_command(app)
