"""Exchanges datastores with the Hub: `pull`, `push` and `catalog`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knn_logits.cli.bars import AGAIN, Bars
from knn_logits.cli.loading import open_datastore, prepare
from knn_logits.cli.options import Json, Store, argument, command
from knn_logits.cli.terminal import answer, picked
from knn_logits.errors import ConfigError
from knn_logits.settings.declaration import setting

if TYPE_CHECKING:
    from knn_logits.hub.catalog import Recipe
    from knn_logits.hub.repositories import Repository

# A round figure to judge a build's time by. `knn-logits build` says what a machine really does.
_TOKENS_A_SECOND = 50_000
_DRY_RUN = "Show what would be transferred, with file sizes."


@command
def pull(
    name: str = argument("NAME", "org/name[@revision] on the Hub."),
    revision: str | None = setting(None, "Branch, tag or commit on the Hub."),
    keys: bool | None = setting(
        None,
        "Whether to fetch the keys; by default only if the index needs them.",
        option="--keys/--no-keys",
    ),
    out: str | None = setting(
        None, "Copy the datastore to a new, writable folder.", metavar="FOLDER"
    ),
    dry_run: bool = setting(False, _DRY_RUN),
    json: Json = False,
) -> None:
    """Download a datastore from the Hub."""
    from knn_logits.hub.pull import pull as pull_datastore

    prepare()
    with Bars(AGAIN) as bars:
        done = pull_datastore(
            name, revision=revision, keys=keys, out=out, dry_run=dry_run, progress=bars
        )
    fetched, left = done.bytes("fetched", "wanted"), done.bytes("left")
    content = {
        "repo": done.name.repo,
        "revision": done.name.revision,
        "folder": str(done.folder),
        "bytes": done.bytes(),
        "bytes_fetched": fetched,
        "files": [
            {"name": file, "bytes": size, "state": state} for file, size, state in done.files
        ],
        "dry_run": dry_run,
    }
    files = [f"{file:24} {size / 1e6:12,.3f} MB  {state}" for file, size, state in done.files]
    verb = "would be fetched" if dry_run else f"fetched in {bars.seconds:.1f} s"
    line = f"{done.name}: {fetched / 1e6:,.1f} of {done.bytes() / 1e6:,.1f} MB {verb}"
    line += f", {left / 1e6:,.1f} MB left on the Hub" if left else ""
    line += "" if dry_run else f"; {done.folder}"
    answer(json, content, *(files if dry_run else ()), line, seconds=bars.seconds)


@dataclass(frozen=True)
class ExtraOptions:
    """What is published beside a datastore, and where it is written as well."""

    custom_generate: str | None = setting(
        None,
        "Also publish a repository for `generate(custom_generate=...)` of transformers.",
        metavar="ORG/NAME",
    )
    space: str | None = setting(
        None, "Also publish a Space with the page; needs --model.", metavar="ORG/NAME"
    )
    model: str | None = setting(None, "The model that the Space loads.", metavar="MODEL")
    keep: str | None = setting(
        None, "Also write what --custom-generate and --space publish to a folder.", metavar="FOLDER"
    )

    def check(self) -> None:
        if (self.space is None) != (self.model is None):
            raise ConfigError(
                "--space and --model must be used together: the Space loads that model"
            )
        if self.keep is not None and self.custom_generate is None and self.space is None:
            raise ConfigError("--keep needs --custom-generate or --space")

    def repositories(self, name: str, commit: str | None) -> list[Repository]:
        from knn_logits.hub import repositories

        made = []
        if self.custom_generate is not None:
            made.append(repositories.custom_generate(self.custom_generate, name, commit))
        if self.space is not None and self.model is not None:
            made.append(repositories.space(self.space, self.model, [name]))
        return made


@dataclass(frozen=True)
class UploadOptions:
    """How a datastore is published."""

    private: bool | None = setting(
        None, "Visibility of a new repository.", option="--private/--public"
    )
    keys: bool = setting(
        True, "Publish the keys, or only the text and the index.", option="--keys/--no-keys"
    )
    revision: str | None = setting(None, "Branch; created if missing.")
    report: str | None = setting(
        None, "Report written by `eval --report`, for the card.", metavar="FOLDER"
    )
    message: str | None = setting(None, "Commit message.")


@command
def push(
    store: Store,
    upload: UploadOptions,
    extras: ExtraOptions,
    name: str = argument("NAME", "org/name on the Hub; created if missing."),
    dry_run: bool = setting(False, _DRY_RUN),
    json: Json = False,
) -> None:
    """Publish a datastore on the Hub, with a card."""
    from knn_logits.hub.push import push_to_hub

    extras.check()
    # Wrong names and missing packages are found before anything is sent.
    extras.repositories(name, None)
    prepare()
    datastore = open_datastore(store)
    with Bars("run the same command again to resume; uploaded files are not sent again") as bars:
        done = push_to_hub(datastore, name, **vars(upload), dry_run=dry_run)
        repositories = extras.repositories(name, done.commit)
        for repository in repositories:
            if extras.keep is not None:
                repository.write(Path(extras.keep) / repository.kind)
            if not dry_run:
                repository.push(private=upload.private, message=upload.message or "")
    content = {
        "repo": done.repo,
        "url": done.url,
        "revision": done.commit,
        "bytes": done.bytes,
        "files": [{"name": file, "bytes": size} for file, size in done.files],
        "beside": [
            picked(repository, "repo", "kind", "url") | {"files": len(repository.files)}
            for repository in repositories
        ],
        "dry_run": dry_run,
    }
    verb = "would be sent to" if dry_run else "sent to"
    commit = f", revision {done.commit}" if done.commit else ""
    lines = [f"{file:24} {size / 1e6:12,.3f} MB" for file, size in done.files if dry_run]
    lines.append(f"{len(done.files)} files, {done.bytes / 1e6:,.1f} MB {verb} {done.url}{commit}")
    lines += [f"{len(extra.files)} files {verb} {extra.url}" for extra in repositories]
    lines += [] if extras.keep is None else [f"written to {extras.keep} as well"]
    answer(json, content, *lines, seconds=bars.seconds)


@command
def catalog(
    name: str | None = argument("NAME", "Show one recipe, with its commands.", None),
    json: Json = False,
) -> None:
    """List recipes of datastores, which are not published yet.

    Shows how much of each is cached locally.
    """
    from knn_logits.hub.catalog import cached_bytes, recipe, recipes

    listed = recipes() if name is None else [recipe(name)]
    cached = {item.name: cached_bytes(item.repo) for item in listed}
    rows = [{**item.model_dump(mode="json"), "cached_bytes": cached[item.name]} for item in listed]
    lines = []
    for item in listed:
        size = cached[item.name]
        lines.append(
            f"{item.name:26} {item.title}: {item.expected.entries:,} entries, "
            f"{item.expected.download_bytes / 1e9:.1f} GB without keys"
            + (f", {size / 1e6:,.1f} MB here" if size else "")
        )
        lines += [] if name is None else _details(item)
    if name is None:
        lines.append("\n`knn-logits catalog NAME` shows the commands that make one.")
    answer(json, {"datastores": rows}, *lines)


def _details(recipe: Recipe) -> list[str]:
    expected = recipe.expected
    hours = expected.model_tokens / _TOKENS_A_SECOND / 3600
    lines = [
        f"\nto publish as  {recipe.repo}",
        f"text           {recipe.source}\nlicense        {recipe.license}",
        f"sizes          keys {expected.key_bytes / 1e9:.1f} GB, index "
        f"{expected.index_bytes / 1e9:.1f} GB",
        f"time           {expected.model_tokens:,} tokens through the model: {hours:.1f} h at "
        f"{_TOKENS_A_SECOND:,} a second; then the index",
    ]
    if recipe.needs:
        lines.append(f"still needs    {recipe.needs}")
    for figure in recipe.published:
        values = (("model", figure.model), ("kNN", figure.knn), ("RetoMaton", figure.retomaton))
        numbers = ", ".join(f"{label} {value:g}" for label, value in values if value is not None)
        colon = ": " if numbers else ""
        lines.append(f"to reproduce   {figure.what}{colon}{numbers} ({figure.by})")
    return [*lines, "", *(f"  {line}" for line in recipe.commands)]
