"""The catalogue of the datastores that the project publishes. Its recipes are data in the package.

A recipe says how a datastore is made, how large it is, and which published figures it reproduces.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from knn_logits.errors import ConfigError
from knn_logits.store import layout
from knn_logits.store.hub_client import REPO_TYPE
from knn_logits.store.records import Record

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FOLDER = "recipes"


class Expected(Record):
    """The expected sizes of a build.

    Attributes:
        entries: Number of entries.
        key_bytes: Size of the keys in bytes.
        index_bytes: Size of the index in bytes.
        download_bytes: Bytes of text and index, which a reader downloads.
        model_tokens: Number of tokens that the model reads, which decides how long a build takes.
    """

    entries: int = Field(ge=1)
    key_bytes: int = Field(ge=1)
    index_bytes: int = Field(ge=0)
    download_bytes: int = Field(ge=1)
    model_tokens: int = Field(ge=1)


class Published(Record):
    """A published result that the datastore is to reproduce.

    Attributes:
        what: The measure, the text and the setting.
        by: The publication.
        model: The result without kNN.
        knn: The result with kNN.
        retomaton: The result with RetoMaton.
    """

    what: str
    by: str
    model: float | None = None
    knn: float | None = None
    retomaton: float | None = None


class Recipe(Record):
    """How a datastore is made.

    Attributes:
        name: Name of the recipe.
        title: A title for people.
        repo: The repository on the Hub where it is, or will be, published.
        model: Hub id of the model.
        corpus: The argument CORPUS of `knn-logits build`.
        license: Licence of the text.
        source: Where the text is from.
        commands: All commands, from the text to the publication.
        needs: What is still missing to make it.
        expected: The expected sizes.
        published: Published results that it is to reproduce.
    """

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
    """Returns all recipes, sorted by name."""
    folder = resources.files("knn_logits.hub").joinpath(_FOLDER)
    files = sorted(
        (one for one in folder.iterdir() if one.name.endswith(".toml")), key=lambda one: one.name
    )
    return [parse(one.name.removesuffix(".toml"), one.read_text(encoding="utf-8")) for one in files]


def recipe(name: str) -> Recipe:
    """Returns the recipe with a name.

    Raises:
        ConfigError: when there is no such recipe.
    """
    known = recipes()
    for one in known:
        if name in (one.name, one.repo):
            return one
    raise ConfigError(
        f"the catalogue has no recipe {name!r}; give one of {', '.join(one.name for one in known)}"
    )


def parse(name: str, text: str) -> Recipe:
    """Reads a recipe from TOML.

    Raises:
        ConfigError: when the text is not a recipe.
    """
    try:
        content: dict[str, Any] = tomllib.loads(text)
        return Recipe.model_validate({"name": name, **content})
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
    files = {one.resolve() for one in snapshots.glob("*/*") if one.is_file()}
    return sum(one.stat().st_size for one in files)
