"""The subcommands by name."""

from __future__ import annotations

import typer
from typer.main import get_command

from knn_logits._version import __version__
from knn_logits.cli import ask, build, editing, evaluate, exchange, generate, info, serve
from knn_logits.cli.terminal import say

app = typer.Typer(
    name="knn-logits",
    help="A memory for language models: kNN-LM in generate(), with the source of every word.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for name, function in {
    "build": build.build,
    "add": editing.add,
    "sync": editing.sync,
    "remove": editing.remove,
    "index": editing.index,
    "verify": info.verify,
    "generate": generate.generate,
    "ask": ask.ask,
    "chat": ask.chat,
    "explain": generate.explain,
    "trace": generate.trace,
    "eval": evaluate.evaluate,
    "tune": evaluate.tune,
    "distill": build.distill,
    "info": info.info,
    "app": serve.page,
    "serve": serve.serve,
    "import": exchange.import_store,
    "pull": exchange.pull,
    "push": exchange.push,
}.items():
    app.command(name)(function)


def _version(show: bool) -> None:
    if show:
        say(f"knn-logits {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """A memory for language models: kNN-LM in generate(), with the source of every word."""


# Reading every command's options takes a tenth of a second, so it is done once in a process.
command = get_command(app)
