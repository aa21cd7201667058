"""Makes repositories of the Hub that use a datastore: a `custom_generate` repository and a Space.

Both have only few files, which are made from templates. So users can read them before they trust
them.
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
from knn_logits.errors import ConfigError, DatastoreError, MissingDependencyError
from knn_logits.store.hub_client import asking, client, endpoint, hub_name

_TEMPLATES = Path(__file__).parent / "templates"
# A Space contains these packages, since it installs only their requirements.
_PACKAGES = ("knn_logits", "knn_logits_app")
# Only files with these endings are copied, so caches and compiled code are left out.
_CARRIED = (".py", ".toml", ".txt", ".css", ".js", ".svg", ".html", ".typed")


@dataclass(frozen=True)
class Repository:
    """The files of a repository of the Hub.

    Attributes:
        repo: The name of the repository, such as "org/name".
        kind: "model" or "space".
        files: The content of the files by their names.
    """

    repo: str
    kind: str
    files: Mapping[str, bytes]

    @property
    def url(self) -> str:
        """The web address of the repository."""
        return f"{endpoint()}/{'spaces/' if self.kind == 'space' else ''}{self.repo}"

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes the files to a folder, where they can be read or tried.

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
            token: The token of the Hub; None takes that of the login.
            message: The message of the commit.

        Returns:
            The id of the commit, 40 hexadecimal digits.

        Raises:
            HubError: when the Hub refuses the files or cannot be reached.
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
    """Makes a repository whose `custom_generate/generate.py` writes with a datastore.

        model.generate(**inputs, custom_generate="org/name", trust_remote_code=True)

    Args:
        repo: The name of the repository, such as "org/name".
        datastore: The name of the datastore on the Hub, or its folder.
        revision: The revision of the datastore; None takes the newest each time.

    Raises:
        ConfigError: when `repo` is not a name on the Hub.
    """
    names = {"repo": _checked(repo), "datastore": repr(datastore), "revision": repr(revision)}
    card = f"""---
library_name: transformers
tags: [custom_generate, knn-logits]
---

# {repo}

This generation recipe for transformers writes with the datastore `{datastore}`, by kNN-LM.

```python
model.generate(**inputs, custom_generate="{repo}", trust_remote_code=True)
```

Use the model that built the datastore. Besides the arguments of `generate()` the recipe takes
`lmbda`, `k`, `knn_temperature`, `suffix_weight` and `datastore`. `knn-logits` has to be installed.
To see which passage each word came from, use `KNNLogitsProcessor` of that package.
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
    """Makes a Space that shows the page with datastores. It contains the package.

    Args:
        repo: The name of the repository, such as "org/name".
        model: The name of the model on the Hub, or its folder.
        datastores: The names of the datastores on the Hub, or their folders.

    Raises:
        ConfigError: when `repo` is not a name on the Hub, or a datastore's name has a space in it.
        MissingDependencyError: when the page is not installed.
    """
    for one in datastores:
        if not one or any(character.isspace() for character in one):
            raise ConfigError(
                f"a Space cannot name the datastore {one!r}: give it a name without blanks"
            )
    names = {"model": repr(model), "datastores": repr(" ".join(datastores))}
    required = [*_requirements("app")]
    # A Space installs the version of gradio that the front matter names.
    gradio = version("gradio") if find_spec("gradio") else "6.27.0"
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

The page of this Space shows `{model}` with the datastores
{", ".join(f"`{one}`" for one in datastores)}, and which passage each word came from. To show
others, duplicate the Space and set its variables `MODEL` and `DATASTORES`. Both are names on the
Hub, and several datastores are separated by spaces.
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
        raise ConfigError(f"{repo!r} is not a name on the Hub: write org/name")
    return repo


def _filled(template: str, names: Mapping[str, str]) -> bytes:
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    return Template(text).substitute(names).encode()


def _requirements(extra: str) -> Iterator[str]:
    """Yields the requirements of the package with an extra, from its metadata."""
    from packaging.requirements import Requirement

    try:
        lines = requires("knn-logits") or ()
    except PackageNotFoundError as error:
        raise MissingDependencyError(
            "knn-logits is not installed, so the requirements of a Space are not known: install it "
            "with pip, and push again"
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
    """Yields the files of this package and of the page's, with their names in a Space."""
    for package in _PACKAGES:
        found = find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise MissingDependencyError(
                f'a Space needs {package}, which is not installed: pip install "knn-logits[app]"'
            )
        root = Path(next(iter(found.submodule_search_locations)))
        for path in sorted(root.rglob("*")):
            if path.suffix in _CARRIED and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(root).as_posix()}", path.read_bytes()
