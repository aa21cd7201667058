"""`push_to_hub` publishes a datastore and its card in one commit on the Hub."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knn_logits.errors import ConfigError, DatastoreError
from knn_logits.hub.card import card
from knn_logits.store import layout
from knn_logits.store.datastore import Datastore
from knn_logits.store.hub_client import LIBRARY, REPO_TYPE, HubName, asking, endpoint, hub_name
from knn_logits.store.manifest import Manifest

_CARD = "README.md"


@dataclass(frozen=True)
class Pushed:
    """A published datastore: its repository and its page, the commit, and its bytes."""

    repo: str
    url: str
    commit: str
    bytes: int


def push_to_hub(
    datastore: Datastore | str | os.PathLike[str],
    repo: str,
    *,
    private: bool | None = None,
    keys: bool = True,
    token: str | bool | None = None,
) -> Pushed:
    """Publishes a datastore as a dataset repository of the Hub, in one commit.

    Readers see either the old state or the new one. Files that were sent before an interruption are
    not sent again. The package's part of the card is replaced, and a user's edits stay.

    Args:
        datastore: A datastore, its folder, or its name on the Hub.
        repo: The repository "org/name", or a branch of it, "org/name@branch". They are made if they
            do not exist.
        private: Whether a new repository is private; None takes the account's default.
        keys: Whether to publish the keys. Without them the datastore is a fraction of the size,
            but `refine`, `add` and another index are not possible.
        token: Access token of the Hub; None takes the one of the login.

    Returns:
        What was published.

    Raises:
        ConfigError: when `repo` is not a name on the Hub, or the index needs the keys.
        DatastoreError: when the datastore holds removed documents.
        DamagedError: when a file differs from the manifest.
        HubError: when the Hub refuses it or cannot be reached.
    """
    from huggingface_hub import HfApi

    name = hub_name(repo)
    if name is None:
        raise ConfigError(f"{repo!r} is not a valid Hub name: use org/name")
    store = datastore if isinstance(datastore, Datastore) else Datastore.from_pretrained(datastore)
    manifest = _as_published(store, keys=keys)
    if keys:
        store.fetch_keys()
    files: dict[str, Path | bytes] = {
        **{record.name: store.folder / record.name for record in manifest.files},
        layout.MANIFEST: manifest.to_bytes(),
    }
    with asking(name):
        api = HfApi(token=token, **LIBRARY)
        api.create_repo(name.repo, repo_type=REPO_TYPE, private=private, exist_ok=True)
        if name.revision is not None:
            api.create_branch(name.repo, branch=name.revision, repo_type=REPO_TYPE, exist_ok=True)
        state = api.dataset_info(name.repo, revision=name.revision)
        present = [sibling.rfilename for sibling in state.siblings or ()]
        old = _card(api, name) if _CARD in present else None
        files[_CARD] = card(manifest, name.repo, name.revision, old).encode()
        done = api.create_commit(
            name.repo,
            _operations(files, present),
            commit_message=f"Datastore of {manifest.entries:,} entries",
            repo_type=REPO_TYPE,
            revision=name.revision,
            # If somebody has edited the card meanwhile, the Hub refuses this commit.
            parent_commit=state.sha,
        )
    size = sum(record.bytes for record in manifest.files)
    return Pushed(name.repo, f"{endpoint()}/datasets/{name.repo}", done.oid, size)


def _as_published(store: Datastore, *, keys: bool) -> Manifest:
    """Makes the manifest as it is published, and refuses text of removed documents."""
    manifest = store.manifest
    if manifest.removed:
        raise DatastoreError(
            f"{store.folder} still contains the text of {len(manifest.removed)} removed "
            f"documents, which would be published: run `knn-logits remove {store.folder}` first"
        )
    if keys or not manifest.key_shards:
        return manifest
    if manifest.file("index") is None:
        raise ConfigError(
            f"the index {manifest.index.factory} of {store.folder} is rebuilt from the keys, so "
            "they must be published too: build another index with `knn-logits index`, such as "
            "IVF1024,SQ8"
        )
    files = tuple(file for file in manifest.files if layout.kind_of(file.name) != "keys")
    return manifest.model_copy(update={"files": files})


def _card(api: Any, name: HubName) -> str:
    path = api.hf_hub_download(name.repo, _CARD, repo_type=REPO_TYPE, revision=name.revision)
    return Path(path).read_text(encoding="utf-8", errors="replace")


def _operations(files: dict[str, Path | bytes], present: Sequence[str]) -> list[Any]:
    """Lists what a commit adds, and what it deletes of an earlier state."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    added: list[Any] = [
        CommitOperationAdd(
            path_in_repo=name,
            path_or_fileobj=str(file) if isinstance(file, Path) else io.BytesIO(file),
        )
        for name, file in files.items()
    ]
    obsolete = [name for name in present if layout.is_ours(name) and name not in files]
    return added + [CommitOperationDelete(path_in_repo=name) for name in obsolete]
