"""`knn-logits catalog [NAME]`."""

from __future__ import annotations

from typing import Annotated

import typer

from knn_logits.cli import arguments as options
from knn_logits.cli.terminal import print_json, say

# A round figure to judge a build's time by. `knn-logits build` says what a machine really does.
_TOKENS_A_SECOND = 50_000


def catalog(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show one recipe, with its commands.")
    ] = None,
    json: options.Json = False,
) -> None:
    """List the datastores that this project publishes, and how much of each is on this machine."""
    from knn_logits.hub.catalog import cached_bytes, recipe, recipes

    chosen = recipes() if name is None else [recipe(name)]
    here = {one.name: cached_bytes(one.repo) for one in chosen}
    if json:
        listed = [{**one.model_dump(mode="json"), "cached_bytes": here[one.name]} for one in chosen]
        print_json({"datastores": listed})
        return
    for one in chosen:
        cached = f", {here[one.name] / 1e6:,.1f} MB here" if here[one.name] else ""
        expected = one.expected
        say(
            f"{one.name:26} {one.title}: {expected.entries:,} entries, "
            f"{expected.download_bytes / 1e9:.1f} GB to download{cached}"
        )
        if name is None:
            continue
        say(f"\npublished as   {one.repo}")
        say(f"text           {one.source}\nlicence        {one.license}")
        say(
            f"sizes          keys {expected.key_bytes / 1e9:.1f} GB, index "
            f"{expected.index_bytes / 1e9:.1f} GB"
        )
        hours = expected.model_tokens / _TOKENS_A_SECOND / 3600
        say(
            f"time           {expected.model_tokens:,} tokens through the model: {hours:.1f} h at "
            f"{_TOKENS_A_SECOND:,} a second; then the index"
        )
        if one.needs:
            say(f"still needs    {one.needs}")
        for figure in one.published:
            values = (("model", figure.model), ("kNN", figure.knn), ("RetoMaton", figure.retomaton))
            numbers = ", ".join(
                f"{label} {value:g}" for label, value in values if value is not None
            )
            say(f"to reproduce   {figure.what}{': ' if numbers else ''}{numbers} ({figure.by})")
        say("")
        for command in one.commands:
            say(f"  {command}")
    if name is None:
        say("\n`knn-logits catalog NAME` shows how one is made, with all commands.")
