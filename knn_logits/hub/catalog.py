"""The catalogue of the datastores that the project publishes, whose recipes are data files."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

from pydantic import Field, ValidationError

from knn_logits.errors import ConfigError
from knn_logits.store import layout
from knn_logits.store.hub_client import REPO_TYPE
from knn_logits.store.records import Record

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Expected(Record):
    """The sizes of a build: entries, bytes of the parts and of a download, tokens that are read."""

    entries: int = Field(ge=1)
    key_bytes: int = Field(ge=1)
    index_bytes: int = Field(ge=0)
    download_bytes: int = Field(ge=1)
    model_tokens: int = Field(ge=1)


class Published(Record):
    """A published result to reproduce: the measure, its source, and figures of each method."""

    what: str
    by: str
    model: float | None = None
    knn: float | None = None
    retomaton: float | None = None


class Recipe(Record):
    """How a datastore is made, with all commands and what is still missing (`needs`)."""

    name: str
    title: str
    repo: str
    model: str
    corpus: str
    license: str
    source: str
    commands: tuple[str, ...] = Field(strict=False)
    needs: str | None = None
    expected: Expected
    published: tuple[Published, ...] = Field(default=(), strict=False)


def recipes() -> list[Recipe]:
    folder = resources.files("knn_logits.hub").joinpath("recipes")
    files = {path.name: path for path in folder.iterdir() if path.name.endswith(".toml")}
    return [
        parse(name.removesuffix(".toml"), files[name].read_text(encoding="utf-8"))
        for name in sorted(files)
    ]


def recipe(name: str) -> Recipe:
    catalog = {recipe.name: recipe for recipe in recipes()}
    by_name = catalog | {recipe.repo: recipe for recipe in catalog.values()}
    if name not in by_name:
        raise ConfigError(f"the catalog has no recipe {name!r}; choose one of {', '.join(catalog)}")
    return by_name[name]


def parse(name: str, text: str) -> Recipe:
    try:
        return Recipe.model_validate({"name": name, **tomllib.loads(text)})
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"the recipe {name} cannot be read: {error}") from error


def cached_bytes(repo: str) -> int:
    """The bytes of a datastore, in any revision, that this machine's cache of the Hub holds."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type=REPO_TYPE)
    snapshots = folder / "snapshots"
    if not any(snapshots.glob(f"*/{layout.MANIFEST}")):
        return 0
    files = {path.resolve() for path in snapshots.glob("*/*") if path.is_file()}
    return sum(path.stat().st_size for path in files)
