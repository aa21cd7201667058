"""The subcommands by name."""

from __future__ import annotations

import typer
from typer.main import get_command

from knn_logits._version import __version__
from knn_logits.cli import (
    ablate,
    add,
    app_command,
    build,
    catalog,
    chat,
    cluster,
    distill,
    estimate,
    evaluate,
    explain,
    generate,
    import_,
    index,
    info,
    merge,
    pull,
    push,
    remove,
    serve,
    sync,
    tune,
    verify,
)
from knn_logits.cli.terminal import say

app = typer.Typer(
    name="knn-logits",
    help="A memory for language models: kNN-LM in generate(), with the source of every word.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("build")(build.build)
app.command("estimate")(estimate.estimate)
app.command("add")(add.add)
app.command("sync")(sync.sync)
app.command("remove")(remove.remove)
app.command("compact")(remove.compact)
app.command("index")(index.index)
app.command("cluster")(cluster.cluster)
app.command("merge")(merge.merge)
app.command("verify")(verify.verify)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("explain")(explain.explain)
app.command("eval")(evaluate.evaluate)
app.command("tune")(tune.tune)
app.command("ablate")(ablate.ablate)
app.command("distill")(distill.distill)
app.command("info")(info.info)
app.command("app")(app_command.serve)
app.command("serve")(serve.serve)
app.command("import")(import_.import_store)
app.command("pull")(pull.pull)
app.command("push")(push.push)
app.command("catalog")(catalog.catalog)


def _version(wanted: bool) -> None:
    if wanted:
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
