"""From what a visitor uploads or pastes to a datastore of their own."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knn_logits import (
    CorpusError,
    Datastore,
    Deadline,
    Document,
    IndexConfig,
    LimitError,
    build_datastore,
    read_corpus,
)
from knn_logits_app.library import Library
from knn_logits_app.lines import pairs_of
from knn_logits_app.requests import RequestError, text_of
from knn_logits_app.session import Session
from knn_logits_app.visitors import OWN_TEXT, Visitors

MOST_FILES = 20
# What is not text could grow a thousandfold when it is read.
_PACKED = (b"\x1f\x8b", b"PAR1", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_SUFFIXES = (".txt", ".md", ".rst", ".jsonl", ".json", ".csv", ".tex", ".html", ".py")


@dataclass(frozen=True)
class Progress:
    """How far a build is; `total` is None when that is not known."""

    phase: str
    done: int
    total: int | None


def documents_of(
    session: Session,
    files: Sequence[str],
    pasted: Any,
    *,
    pairs: bool = False,
    sources: Any = None,
) -> tuple[list[Document], int]:
    """The documents that a visitor gave, all of them within the limits.

    Args:
        session: Whose limits hold.
        files: Paths of uploaded files, as the server stored them.
        pasted: Text typed in.
        pairs: Whether pairs are wanted, for an encoder-decoder model: of files those of JSON
            lines with a source and a target each, of `pasted` the targets, one a line.
        sources: Typed in, the source of each of its lines.

    Returns:
        The documents, and how many could not be read.
    """
    if len(files) > MOST_FILES:
        raise LimitError(f"{len(files)} files at once; {MOST_FILES} are allowed")
    # Files of the same content share a place, and the first to use one deletes it.
    if not all(Path(file).is_file() for file in files):
        raise RequestError("A file is gone from the server; upload it again.")
    size = sum(Path(file).stat().st_size for file in files)
    typed = [one for one in (pasted, sources) if isinstance(one, str)]
    size += sum(len(one.encode("utf-8", "replace")) for one in typed)
    session.limits.check(text_bytes=size)
    found: list[Document] = []
    skipped: list[str] = []
    for file in files:
        name = Path(file).name
        with Path(file).open("rb") as opened:
            head = opened.read(8)
        if head.startswith(_PACKED) or not name.lower().endswith(_SUFFIXES):
            raise RequestError(
                f"Only plain text and JSON lines are read here ({', '.join(_SUFFIXES[:5])}), "
                "nothing packed."
            )
        try:
            found += read_corpus([file], pairs=pairs, on_skip=lambda name, _: skipped.append(name))
        except CorpusError as error:
            wanted = 'text in UTF-8, or JSON lines with a "text" in each'
            if pairs:
                wanted = 'JSON lines with a "source" and a "target" in each'
            raise RequestError(f"{name} cannot be read: it has to be {wanted}.") from error
    if pairs and any(one.strip() for one in typed):
        found += pairs_of(sources, pasted, most=session.limits.text_bytes)
    elif isinstance(pasted, str) and pasted.strip():
        text = text_of(pasted, most=session.limits.text_bytes)
        found.append(Document(text, "pasted text", title="Pasted text"))
    if not found:
        raise RequestError("There is no text yet: upload a file or paste something.")
    # A file name is a title good enough.
    return [one if one.title else _titled(one) for one in found], len(skipped)


def _titled(document: Document) -> Document:
    return Document(
        document.text,
        document.id,
        title=document.id,
        uri=_web(document.uri),
        source=document.source,
    )


def _web(uri: str | None) -> str | None:
    """A web address; the path of an uploaded file is none."""
    return uri if uri and uri.lower().startswith(("http://", "https://")) else None


def build_steps(
    session: Session,
    library: Library,
    documents: Sequence[Document],
    room: Path,
    deadline: Deadline,
) -> Iterator[Progress | Path]:
    """Builds a datastore with the settings of the model's first one.

    Args:
        session: Whose limits hold.
        library: The model.
        documents: From `documents_of`.
        room: An empty folder; what there is of a build that ends early is deleted.
        deadline: Ends the build.

    Yields:
        How far it is, and at last the datastore's folder.
    """
    like = next(iter(library.stores.values())).manifest
    news: queue.Queue[Progress | Path | BaseException] = queue.Queue()

    def progress(phase: str, done: int, total: int | None) -> None:
        news.put(Progress(phase, done, total))

    def run() -> None:
        try:
            store = build_datastore(
                library.model,
                library.tokenizer,
                documents,
                room / OWN_TEXT,
                key=like.key.name,
                index=IndexConfig("auto", metric=like.metric),
                k=like.settings.k,
                lmbda=like.settings.lmbda,
                temperature=like.settings.temperature,
                batch_tokens=1024,
                **(like.pairs.model_dump() if like.pairs else {}),
                threads=session.threads,
                source="a visitor's own text",
                progress=deadline.watch(progress),
            )
            news.put(store.folder)
        except BaseException as error:
            news.put(error)

    worker = threading.Thread(target=run, name="build", daemon=True)
    worker.start()
    kept = False
    try:
        while True:
            what = news.get()
            while isinstance(what, Progress) and not news.empty():
                what = news.get()
            if isinstance(what, BaseException):
                raise what
            if isinstance(what, Path):
                deadline.check()
                kept = True
                yield what
                return
            yield what
    finally:
        deadline.cancel()
        if not kept:
            _delete_when_done(room, worker)


def build_own(
    steps: Iterator[Progress | Path], visitors: Visitors, visitor: str
) -> Iterator[Progress | Datastore]:
    """Makes what is built the visitor's own.

    Args:
        steps: From `build_steps`.
        visitors: Keeps the datastore.
        visitor: Whose it is.
    """
    with closing(steps):  # type: ignore[type-var]
        for step in steps:
            if isinstance(step, Progress):
                yield step
            else:
                store = Datastore(step)
                visitors.keep(visitor, store)
                yield store


def _delete_when_done(room: Path, worker: threading.Thread) -> None:
    """Deletes what there is of a build once the thread that writes it has stopped."""

    def tidy() -> None:
        worker.join()
        shutil.rmtree(room, ignore_errors=True)

    threading.Thread(target=tidy, name="tidy", daemon=True).start()
