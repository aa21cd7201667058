"""Makes repositories that use a datastore, from templates: a `custom_generate` one and a Space."""

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
    """The files of a repository of the Hub, "org/name", and their content by name."""

    repo: str
    kind: str  # "model" or "space"
    files: Mapping[str, bytes]

    @property
    def url(self) -> str:
        return f"{endpoint()}/{'spaces/' if self.kind == 'space' else ''}{self.repo}"

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes the files to a folder, where they can be read or tried."""
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
        """Sends the files to the Hub as one commit, and returns its id. Other files stay."""
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
    """Makes a repository whose `custom_generate/generate.py` writes with a datastore."""
    values = {"repo": _checked(repo), "name": datastore}
    values |= {"datastore": repr(datastore), "revision": repr(revision)}
    files = {
        "README.md": _filled("generate_card.txt", values),
        "custom_generate/generate.py": _filled("generate.py.txt", values),
        "custom_generate/requirements.txt": f"knn-logits>={__version__}\n".encode(),
    }
    return Repository(repo, "model", files)


def space(repo: str, model: str, datastores: Sequence[str]) -> Repository:
    """Makes a Space that shows the page with datastores. It contains the package."""
    for datastore in datastores:
        if not datastore or any(map(str.isspace, datastore)):
            raise ConfigError(
                f"a Space cannot use the datastore name {datastore!r}: rename it without spaces"
            )
    values = {"repo": _checked(repo), "title": repo.partition("/")[2], "name": model}
    values |= {"model": repr(model), "datastores": repr(" ".join(datastores))}
    values["listed"] = ", ".join(f"`{datastore}`" for datastore in datastores)
    # A Space installs the version of gradio that the front matter names.
    values["gradio"] = version("gradio") if find_spec("gradio") else "6.27.0"
    files = {
        "README.md": _filled("space_card.txt", values),
        "app.py": _filled("space.py.txt", values),
        "requirements.txt": ("\n".join(_requirements("app")) + "\n").encode(),
        **dict(_packages()),
    }
    return Repository(repo, "space", files)


def _checked(repo: str) -> str:
    name = hub_name(repo)
    if name is None or name.revision is not None:
        raise ConfigError(f"{repo!r} is not a valid Hub name: use org/name")
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
            "knn-logits is not installed, so the requirements of a Space are unknown: install it "
            "with pip, and push again"
        ) from error
    for line in lines:
        requirement = Requirement(line)
        marker = str(requirement.marker or "")
        if "extra" in marker and f'extra == "{extra}"' not in marker:
            continue
        if "extra" in marker:
            requirement.marker = None
        yield str(requirement)


def _packages() -> Iterator[tuple[str, bytes]]:
    """Yields the files of this package and of the page's, with their names in a Space."""
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise MissingDependencyError(
                f'a Space needs {package}, which is not installed: pip install "knn-logits[app]"'
            )
        root = Path(next(iter(spec.submodule_search_locations)))
        for path in sorted(root.rglob("*")):
            if path.suffix in _CARRIED and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(root).as_posix()}", path.read_bytes()
