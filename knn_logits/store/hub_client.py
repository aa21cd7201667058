"""Datastores on the Hub: their names, its client with its errors, and fetching file by file."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knn_logits._version import __version__
from knn_logits.errors import ConfigError, DamagedError, HubError, KNNLogitsError, StorageError
from knn_logits.progress import Progress, counter, no_progress
from knn_logits.store import layout
from knn_logits.store.files import delete
from knn_logits.store.manifest import Manifest, read_manifest
from knn_logits.store.records import FileRecord
from knn_logits.store.verification import check_file

# Datastores live in repositories of this kind.
REPO_TYPE = "dataset"
TAG = "knn-logits"
# The name and the version that the client tells the Hub.
LIBRARY: dict[str, Any] = {"library_name": TAG, "library_version": __version__}
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@([^\s@]{{1,200}}))?")
_COMMIT = re.compile("[0-9a-f]{40}")
# The client uses these tags as names of files.
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,199}")
# The most bytes of a manifest, a list of files or a card.
LARGEST_ANSWER = 16 << 20
# The meanings of the client's errors, by their class.
_MEANINGS = {
    "RepositoryNotFoundError": "{repo} is neither a folder nor a public datastore at {hub}: check "
    "the name; for a private or gated one log in with `hf auth login`, or give a token (HF_TOKEN)",
    "RevisionNotFoundError": "{repo} has no revision {revision} on the Hub: leave the revision out "
    "to get the newest",
    "LocalEntryNotFoundError": "{repo} is no folder here and not whole in this machine's cache, "
    "and the Hub was not reached ({reason}): check the path, HF_HUB_OFFLINE and the connection",
    "EntryNotFoundError": "{address} does not hold a complete datastore: check the name, or tell "
    "its publisher",
    "Exception": "{hub} gave no usable answer about {repo} ({reason}): run the command again; "
    "downloaded files are kept",
}


@dataclass(frozen=True)
class HubName:
    """The repository "org/name" of a datastore, and a branch, tag or commit; None is the newest."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def hub_name(text: str | os.PathLike[str]) -> HubName | None:
    """Reads "org/name" or "org/name@revision"; None for an existing path, or no such name."""
    match = _NAME.fullmatch(text) if isinstance(text, str) else None
    if match is None or Path(text).exists() or "--" in match[1] or ".." in match[1]:
        return None
    revision = match[2]
    # The client uses the revision as the name of a file.
    if revision is not None and (revision[0] in "/." or ".." in revision or "\\" in revision):
        raise ConfigError(f"{revision!r} is not a valid revision: use a branch, a tag or a commit")
    return HubName(match[1], revision)


def endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


# The name that is being fetched, and the maximum number of bytes of the answer.
_question: ContextVar[tuple[HubName, int] | None] = ContextVar("_question", default=None)


def _check_answer(response: Any) -> None:
    """Checks each answer before the client acts on it. Answers to other users' code pass."""
    question = _question.get()
    if question is None:
        return
    name, most = question
    too_large = f"is larger than the {most:,} bytes that it may have"
    if response.request.method == "HEAD":
        headers = response.headers
        commit, asked = headers.get("X-Repo-Commit"), name.revision or ""
        if commit is not None and (
            not _COMMIT.fullmatch(commit) or (_COMMIT.fullmatch(asked) and commit != asked)
        ):
            raise _refusal(name, "names another commit than was asked for")
        tags = [headers[header] for header in ("X-Linked-Etag", "ETag") if header in headers]
        if not all(_TAG.fullmatch(tag.removeprefix("W/").strip('"')) for tag in tags):
            raise _refusal(name, "has a malformed tag (ETag)")
        size = headers.get("X-Linked-Size") or headers.get("Content-Length")
        if size is not None and not (size.isdecimal() and int(size) <= most):
            raise _refusal(name, too_large)
        # hf_xet would fetch the file itself, from any host and of any size.
        for header in [header for header in headers if header.lower().startswith("x-xet")]:
            del headers[header]
    chunks = response.iter_bytes

    def bounded(*args: Any, **options: Any) -> Iterator[bytes]:
        arrived = 0
        for chunk in chunks(*args, **options):
            arrived += len(chunk)
            if arrived > most:
                raise _refusal(name, too_large)
            yield chunk

    response.iter_bytes = bounded


def _refusal(name: HubName, reason: str) -> HubError:
    return HubError(
        f"the answer of {endpoint()} about {name} {reason}, so it is refused: check whether "
        "HF_ENDPOINT is the right Hub, or tell the datastore's publisher"
    )


def is_watched() -> bool:
    """Whether the client's answers are checked. A client remade after an error is unchecked."""
    from huggingface_hub import get_session

    return _check_answer in get_session().event_hooks["response"]


@contextmanager
def asking(name: HubName, most: int = LARGEST_ANSWER) -> Iterator[None]:
    """Refuses answers of more than `most` bytes, and says what an error of the client means."""
    from huggingface_hub import get_session

    if not is_watched():
        get_session().event_hooks["response"].append(_check_answer)
    before = _question.set((name, most))
    try:
        yield
    except KNNLogitsError:
        raise
    except Exception as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageError(
                f"the disk is full while {name} is fetched: free some space, or set HF_HOME to "
                "another disk, then run the command again; downloaded files are kept"
            ) from error
        kinds = [kind.__name__ for kind in type(error).__mro__]
        text = next(_MEANINGS[kind] for kind in kinds if kind in _MEANINGS)
        raise HubError(
            text.format(
                repo=name.repo,
                revision=name.revision,
                hub=endpoint(),
                address=f"{endpoint()}/datasets/{name.repo}",
                reason=_first_cause(error),
            )
        ) from error
    finally:
        _question.reset(before)


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:160] + "…"


@dataclass(frozen=True)
class Remote:
    """One commit of a datastore on the Hub. `Remote.find` makes it."""

    name: HubName
    # The folder in the cache, named by the commit, with links into the cache's blobs.
    folder: Path
    # The cache, the token, and whether the Hub may be asked.
    access: Mapping[str, Any]

    @classmethod
    def find(cls, name: HubName, **access: Any) -> Remote:
        """Fetches the manifest, or takes it from the cache if the Hub cannot be reached."""
        path = _download(name, layout.MANIFEST, LARGEST_ANSWER, access, lambda _: None)
        return cls(name, path.parent, access)

    @property
    def pinned(self) -> HubName:
        return HubName(self.name.repo, self.folder.name)

    def manifest(self) -> Manifest:
        """The manifest of this commit. A damaged one is fetched again the next time."""
        try:
            return read_manifest(self.folder)
        except DamagedError:
            _drop(self.folder / layout.MANIFEST)
            raise

    def missing(self, records: Sequence[FileRecord]) -> list[FileRecord]:
        return [record for record in records if not (self.folder / record.name).exists()]

    def fetch(
        self, records: Sequence[FileRecord], manifest: Manifest, progress: Progress = no_progress
    ) -> None:
        """Fetches files that are not in the cache, one after another, and checks their hashes."""
        missing = self.missing(records)
        count = counter(progress, "downloading", sum(record.bytes for record in missing))
        for record in missing:
            path = _download(self.pinned, record.name, record.bytes, self.access, count)
            try:
                check_file(path, record, manifest)
            except DamagedError as error:
                # The manifest may be the wrong one of the two, so it is fetched again as well.
                _drop(self.folder / record.name)
                _drop(self.folder / layout.MANIFEST)
                raise DamagedError(
                    f"{record.name} of {self.pinned} does not match its manifest (size or SHA-256) "
                    "and was deleted: try again, use another revision, or contact its publisher"
                ) from error


def needed(manifest: Manifest) -> list[FileRecord]:
    """The files that a search needs. The other files can be fetched later."""
    later = manifest.key_shards if manifest.file("index") else []
    return [record for record in manifest.files if record not in later]


def _download(
    name: HubName, file: str, most: int, access: Mapping[str, Any], count: Callable[[int], None]
) -> Path:
    """Fetches a file of at most `most` bytes into the cache, if it is not there."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        """Counts instead of drawing."""

        def __init__(self, *args: Any, **options: Any) -> None:
            if not is_watched():
                raise ConnectionError("it was lost for a moment")
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            count(int(n or 0))

    options: dict[str, Any] = {**access, **LIBRARY, "tqdm_class": Bar}
    with asking(name, most):
        return Path(
            hf_hub_download(name.repo, file, repo_type=REPO_TYPE, revision=name.revision, **options)
        )


def _drop(path: Path) -> None:
    """Deletes a file from the cache, so that it is fetched again."""
    blob = path.resolve()
    delete(path)
    if blob.parent == path.parent.resolve().parents[1] / "blobs":
        delete(blob)
