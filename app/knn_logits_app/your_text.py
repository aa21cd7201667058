"""Builds a datastore from the text that a visitor uploads or pastes."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from knn_logits import (
    CorpusError,
    Datastore,
    Deadline,
    Document,
    IndexConfig,
    KNNConfig,
    LimitError,
    build_datastore,
    read_corpus,
)
from knn_logits_app.library import Library
from knn_logits_app.requests import RequestError, is_web, pairs_of, text_of
from knn_logits_app.session import Session
from knn_logits_app.visitors import YOUR_TEXT, Visitors

MOST_FILES = 20
# These are archives, which the corpus opens in a child process of limited memory and time.
_ARCHIVES = (".docx", ".pptx", ".epub")
SUFFIXES = (
    ".txt", ".md", ".jsonl", ".pdf", ".docx", ".pptx", ".epub", ".html", ".rst", ".json", ".csv",
    ".tex", ".py", ".rtf", ".ipynb", ".eml", ".mbox",
)  # fmt: skip
# How the uri of an uploaded file begins (`addressOf` in assets/dom.js).
UPLOAD = "upload:"
# Files that begin like this are packed, and could grow a thousandfold when they are read.
_PACKED = (b"\x1f\x8b", b"PAR1", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")


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
    """Reads what a visitor gave, pairs by line or in JSON lines, and counts what was skipped."""
    limits = session.limits
    if len(files) > MOST_FILES:
        raise LimitError(
            f"{len(files)} files were uploaded, but only {MOST_FILES} are allowed: remove some"
        )
    # gradio stores files with the same content once, and the first build that reads one deletes it.
    if not all(Path(file).is_file() for file in files):
        raise RequestError("A file is no longer on the server: upload it again.")
    typed = [text for text in (pasted, sources) if isinstance(text, str)]
    size = sum(Path(file).stat().st_size for file in files)
    size += sum(len(text.encode("utf-8", "replace")) for text in typed)
    limits.check(text_bytes=size)
    documents: list[Document] = []
    skipped: list[str] = []
    size = 0
    for file in files:
        for document in _read(file, pairs, skipped, deadline):
            # A file may hold far more text than it has bytes.
            size += len(f"{document.text}{document.source or ''}".encode())
            limits.check(text_bytes=size)
            documents.append(document)
    if pairs and any(text.strip() for text in typed):
        documents += pairs_of(sources, pasted, most=limits.text_bytes)
    elif isinstance(pasted, str) and pasted.strip():
        text = text_of(pasted, most=limits.text_bytes)
        documents.append(Document(text, "pasted text", title="Pasted text"))
    if not documents:
        raise RequestError("There is no text yet: upload a file or paste some text.")
    return documents, len(skipped)


def _read(
    file: str, pairs: bool, skipped: list[str], deadline: Deadline | None
) -> Iterator[Document]:
    name = Path(file).name
    with Path(file).open("rb") as opened:
        packed = opened.read(8).startswith(_PACKED) and not name.lower().endswith(_ARCHIVES)
    if packed or not name.lower().endswith(SUFFIXES):
        raise RequestError(
            f"{name} cannot be read: upload text, JSON lines or documents "
            f"({', '.join(SUFFIXES[:7])}), not packed."
        )
    reasons: list[str] = []

    def on_skip(_: str, reason: str) -> None:
        reasons.append(reason)
        skipped.append(name)

    try:
        for document in read_corpus(
            [file],
            pairs=pairs,
            on_skip=on_skip,
            on_bytes=lambda _: deadline.check() if deadline else None,
        ):
            # The browser still has an uploaded file, and finds it by its name. No other uri is an
            # address, and lines are no places to name.
            original = f"{UPLOAD}{name}" if document.uri == name else None
            document = replace(document, uri=document.uri if is_web(document.uri) else original)
            if not document.title:
                blocks = [
                    replace(block, place="") if block.place.startswith("line ") else block
                    for block in document.blocks
                ]
                document = replace(document, title=document.id, blocks=blocks, metadata={})
            yield document
    except CorpusError as error:
        content = 'a "source" and a "target"' if pairs else 'a "text"'
        reason = reasons[0] if reasons else f"it must be JSON lines with {content} in each"
        if "--" in reason:  # the command line has such options, and the page has none
            reason = reason.partition(";")[0]
        raise RequestError(f"{name} cannot be read: {reason}.") from error


def build_steps(
    session: Session,
    documents: Sequence[Document],
    room: Path,
    deadline: Deadline,
) -> Iterator[Progress | Path]:
    """Builds with the first datastore's settings, in a folder that goes if it fails."""
    library, like = session.library, session.library.store.manifest
    news: queue.Queue[Progress | Path | BaseException] = queue.Queue()

    def run() -> None:
        try:
            store = build_datastore(
                library.model,
                library.tokenizer,
                documents,
                room / YOUR_TEXT,
                key=like.key.name,
                index=IndexConfig("auto", metric=like.metric),
                **KNNConfig.of(like.settings).stored_values(),
                batch_tokens=1024,
                **(like.pairs.model_dump() if like.pairs else {}),
                threads=session.threads,
                source="a visitor's own text",
                progress=deadline.watch(lambda *step: news.put(Progress(*step))),
            )
            news.put(store.folder)
        except BaseException as error:
            news.put(error)

    worker = threading.Thread(target=run, name="build", daemon=True)
    worker.start()
    done = False
    try:
        while not done:
            step = news.get()
            while isinstance(step, Progress) and not news.empty():
                step = news.get()
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, Path):
                deadline.check()
                done = True
            yield step
    finally:
        deadline.cancel()
        if not done:

            def tidy() -> None:
                # The thread that writes the folder has to stop first.
                worker.join()
                shutil.rmtree(room, ignore_errors=True)

            threading.Thread(target=tidy, name="tidy", daemon=True).start()


def build_for(
    steps: Iterator[Progress | Path], library: Library, visitors: Visitors, visitor: str
) -> Iterator[Progress | Datastore]:
    """Gives the finished datastore to a visitor, with the gate of the first one."""
    with closing(steps):  # type: ignore[type-var]
        for step in steps:
            if isinstance(step, Progress):
                yield step
            else:
                store = Datastore(step)
                store.take_gate(library.store)
                visitors.keep(visitor, store)
                yield store
