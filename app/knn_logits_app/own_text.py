"""Builds a datastore from the text that a visitor uploads or pastes."""

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
# Files that begin like this are packed, and could grow a thousandfold when they are read.
_PACKED = (b"\x1f\x8b", b"PAR1", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_SUFFIXES = (".txt", ".md", ".rst", ".jsonl", ".json", ".csv", ".tex", ".html", ".py")


@dataclass(frozen=True)
class Progress:
    """The progress of a build. `total` is None if it is not known."""

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
    deadline: Deadline | None = None,
) -> tuple[list[Document], int]:
    """Reads the documents that a visitor gave, within the limits.

    Args:
        session: The session, which has the limits.
        files: The paths of uploaded files on the server.
        pasted: The text that was typed or pasted. With `pairs` it has the targets, one on each
            line.
        pairs: Whether to read pairs for an encoder-decoder model. Files then have JSON lines that
            each have a source and a target.
        sources: The sources of the targets in `pasted`, one on each line.
        deadline: Ends the reading early.

    Returns:
        The documents, and the number of documents that could not be read.

    Raises:
        LimitError: when there are too many files, too much text, or the deadline has passed.
        RequestError: when there is no text, or a file cannot be read.
    """
    if len(files) > MOST_FILES:
        raise LimitError(
            f"{len(files)} files were uploaded, but only {MOST_FILES} are allowed: remove some"
        )
    # gradio stores files with the same content once, and the first build that reads one deletes it.
    if not all(Path(file).is_file() for file in files):
        raise RequestError("A file is gone from the server: upload it again.")
    size = sum(Path(file).stat().st_size for file in files)
    typed = [one for one in (pasted, sources) if isinstance(one, str)]
    size += sum(len(one.encode("utf-8", "replace")) for one in typed)
    session.limits.check(text_bytes=size)
    found: list[Document] = []
    skipped: list[str] = []
    read = 0
    for file in files:
        name = Path(file).name
        with Path(file).open("rb") as opened:
            head = opened.read(8)
        if head.startswith(_PACKED) or not name.lower().endswith(_SUFFIXES):
            raise RequestError(
                f"{name} cannot be read: upload plain text or JSON lines "
                f"({', '.join(_SUFFIXES[:5])}), not packed."
            )
        try:
            for document in read_corpus(
                [file],
                pairs=pairs,
                on_skip=lambda name, _: skipped.append(name),
                on_bytes=lambda _: deadline.check() if deadline else None,
            ):
                found.append(document)
                # A file may hold far more text than it has bytes.
                read += len(document.text.encode()) + len((document.source or "").encode())
                session.limits.check(text_bytes=read)
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
    # A document without a title gets the name of its file as title.
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
    """Returns a URI if it is a web address. The path of an uploaded file is not one."""
    return uri if uri and uri.lower().startswith(("http://", "https://")) else None


def build_steps(
    session: Session,
    library: Library,
    documents: Sequence[Document],
    room: Path,
    deadline: Deadline,
) -> Iterator[Progress | Path]:
    """Builds a datastore with the settings for scoring of the model's first datastore.

    Args:
        session: The session, which has the number of threads.
        library: The model.
        documents: The documents that `documents_of` read.
        room: An empty folder. It is deleted if the build ends early.
        deadline: Ends the build early.

    Yields:
        The progress, and at the end the datastore's folder.
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
                suffix_weight=like.settings.suffix_weight,
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
    steps: Iterator[Progress | Path], library: Library, visitors: Visitors, visitor: str
) -> Iterator[Progress | Datastore]:
    """Passes the progress of a build on, and gives the finished datastore to the visitor.

    The datastore is written with like the model's first datastore, since a text of a paragraph is
    too short to choose settings for writing.

    Args:
        steps: The steps of `build_steps`.
        library: The model.
        visitors: The visitors, who keep their datastores.
        visitor: The session of the visitor.

    Yields:
        The progress, and at the end the datastore.
    """
    with closing(steps):  # type: ignore[type-var]
        for step in steps:
            if isinstance(step, Progress):
                yield step
            else:
                store = Datastore(step)
                like = next(iter(library.stores.values())).manifest
                store.manifest = store.manifest.model_copy(update={"writing": like.writing})
                visitors.keep(visitor, store)
                yield store


def _delete_when_done(room: Path, worker: threading.Thread) -> None:
    """Deletes the folder of an unfinished build once the thread that writes it has stopped."""

    def tidy() -> None:
        worker.join()
        shutil.rmtree(room, ignore_errors=True)

    threading.Thread(target=tidy, name="tidy", daemon=True).start()
