"""What goes to the Hub beside a datastore: a `custom_generate` repository, and a Space.

Both are few files, written here from templates, so that they can be read before they are trusted.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from string import Template

from knn_logits._version import __version__
from knn_logits.datastore.hub_client import asking, client, endpoint, hub_name
from knn_logits.errors import ConfigError, DatastoreError, MissingDependencyError

_TEMPLATES = Path(__file__).parent / "templates"
# What a Space carries, since it installs what it requires and not what it is.
_PACKAGES = ("knn_logits", "knn_logits_app")
# Endings of the files that are carried: no caches, no compiled code.
_CARRIED = (".py", ".toml", ".txt", ".css", ".js", ".svg", ".html", ".typed")


@dataclass(frozen=True)
class Repository:
    """Files that become a repository of the Hub.

    Attributes:
        repo: "org/name".
        kind: "model" or "space".
        files: Content by name.
    """

    repo: str
    kind: str
    files: Mapping[str, bytes]

    @property
    def url(self) -> str:
        """Where it is to be seen."""
        return f"{endpoint()}/{'spaces/' if self.kind == 'space' else ''}{self.repo}"

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes the files to a folder, to be read or tried.

        Raises:
            DatastoreError: when the folder cannot be written.
        """
        for name, content in self.files.items():
            path = Path(folder) / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except OSError as error:
                raise DatastoreError(f"{path} cannot be written: {error.strerror}") from error

    def push(
        self, *, private: bool | None = None, token: str | bool | None = None, message: str = ""
    ) -> str:
        """Sends the files to the Hub as one commit. Other files of the repository stay.

        Args:
            private: Whether a new repository is private; None takes the account's default.
            token: Of the Hub; None takes that of the login.
            message: Of the commit.

        Returns:
            The commit, 40 hexadecimal digits.

        Raises:
            HubError: when the Hub refuses it or cannot be reached.
        """
        from huggingface_hub import CommitOperationAdd

        name = hub_name(self.repo)
        assert name is not None
        with asking(name):
            api = client(token)
            api.create_repo(
                self.repo,
                repo_type=self.kind,
                private=private,
                exist_ok=True,
                space_sdk="gradio" if self.kind == "space" else None,
            )
            done = api.create_commit(
                self.repo,
                [
                    CommitOperationAdd(path_in_repo=name, path_or_fileobj=io.BytesIO(content))
                    for name, content in self.files.items()
                ],
                commit_message=message or f"Written by knn-logits {__version__}",
                repo_type=self.kind,
            )
        return str(done.oid)


def custom_generate(repo: str, datastore: str, revision: str | None = None) -> Repository:
    """A repository whose `custom_generate/generate.py` writes with a datastore.

        model.generate(**inputs, custom_generate="org/name", trust_remote_code=True)

    Args:
        repo: "org/name", where it will be.
        datastore: The datastore's name on the Hub, or its folder.
        revision: Of the datastore; None takes the newest at each opening.

    Raises:
        ConfigError: when `repo` is no name on the Hub.
    """
    names = {"repo": _checked(repo), "datastore": repr(datastore), "revision": repr(revision)}
    card = f"""---
library_name: transformers
tags: [custom_generate, knn-logits]
---

# {repo}

A generation recipe of transformers: it writes with the datastore `{datastore}`, by kNN-LM.

```python
model.generate(**inputs, custom_generate="{repo}", trust_remote_code=True)
```

The model is the one that the datastore was built by. Besides the arguments of `generate()` it takes
`lmbda`, `k`, `knn_temperature` and `datastore`. `knn-logits` has to be installed. To see which
passage gave which word, use `KNNLogitsProcessor` of that package.
"""
    return Repository(
        repo,
        "model",
        {
            "README.md": card.encode(),
            "custom_generate/generate.py": _filled("generate.py.txt", names),
            "custom_generate/requirements.txt": f"knn-logits>={__version__}\n".encode(),
        },
    )


def space(repo: str, model: str, datastores: Sequence[str]) -> Repository:
    """A Space that shows the page over datastores, with the package in it.

    Args:
        repo: "org/name", where it will be.
        model: The model's name on the Hub, or its folder.
        datastores: Names on the Hub, or folders.

    Raises:
        ConfigError: when `repo` is no name on the Hub, or a name has a blank in it.
        MissingDependencyError: when the page is not installed.
    """
    for one in datastores:
        if not one or any(character.isspace() for character in one):
            raise ConfigError(f"{one!r} cannot be named in a Space: a name has no blanks")
    names = {"model": repr(model), "datastores": repr(" ".join(datastores))}
    required = [*_requirements("app")]
    # What the front end was made for; a Space has its gradio from the front matter as well.
    gradio = version("gradio") if find_spec("gradio") else "6.0.0"
    card = f"""---
title: {_checked(repo).partition("/")[2]}
emoji: 🔎
colorFrom: green
colorTo: gray
sdk: gradio
sdk_version: {gradio}
app_file: app.py
tags: [knn-logits]
short_description: A language model with a memory you can read
---

# {repo}

`{model}` with the datastores {", ".join(f"`{one}`" for one in datastores)}: the page shows which
passage gave which word. Duplicate this Space and set its variables `MODEL` and `DATASTORES` (names
on the Hub, with blanks between them) to show others.
"""
    return Repository(
        repo,
        "space",
        {
            "README.md": card.encode(),
            "app.py": _filled("space.py.txt", names),
            "requirements.txt": ("\n".join(required) + "\n").encode(),
            **dict(_packages()),
        },
    )


def _checked(repo: str) -> str:
    name = hub_name(repo)
    if name is None or name.revision is not None:
        raise ConfigError(f"{repo!r} is no name on the Hub: write org/name")
    return repo


def _filled(template: str, names: Mapping[str, str]) -> bytes:
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    return Template(text).substitute(names).encode()


def _requirements(extra: str) -> Iterator[str]:
    """What the package needs, with those of an extra, as its metadata say."""
    from packaging.requirements import Requirement

    try:
        lines = requires("knn-logits") or ()
    except PackageNotFoundError as error:
        raise MissingDependencyError(
            "what a Space has to install stands in the metadata of the installed package: install "
            "knn-logits with pip, and push again"
        ) from error
    for line in lines:
        one = Requirement(line)
        marker = str(one.marker or "")
        if "extra" in marker and f'extra == "{extra}"' not in marker:
            continue
        if one.marker is not None and "extra" in marker:
            one.marker = None
        yield str(one)


def _packages() -> Iterator[tuple[str, bytes]]:
    """The files of this package and of the page's, by their names in a Space."""
    for package in _PACKAGES:
        found = find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise MissingDependencyError(
                f'a Space carries {package}, which is not installed: pip install "knn-logits[app]"'
            )
        root = Path(next(iter(found.submodule_search_locations)))
        for path in sorted(root.rglob("*")):
            if path.suffix in _CARRIED and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(root).as_posix()}", path.read_bytes()
