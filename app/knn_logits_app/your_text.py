"""Builds a datastore from the files that a visitor attaches."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from knn_logits import Datastore, Document, IndexConfig, KNNConfig, build_datastore, read_corpus
from knn_logits.errors import CorpusError, LimitError
from knn_logits.hosting import Deadline
from knn_logits_app.requests import RequestError, is_web
from knn_logits_app.session import Session, emitted
from knn_logits_app.visitors import YOUR_TEXT

MOST_FILES = 20
# These are archives, which the corpus opens in a child process of limited memory and time.
_ARCHIVES = (".docx", ".epub")
SUFFIXES = (
    ".txt", ".md", ".jsonl", ".pdf", ".docx", ".epub", ".html", ".rst", ".json", ".csv",
    ".tex", ".py", ".ipynb", ".eml",
)  # fmt: skip
# Files that begin like this are packed, and could grow a thousandfold when they are read.
_PACKED = (b"\x1f\x8b", b"PAR1", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")


def documents_of(
    session: Session, files: Sequence[str], deadline: Deadline
) -> tuple[list[Document], int]:
    """Reads the files that a visitor attached, and counts what was skipped."""
    limits = session.limits
    if len(files) > MOST_FILES:
        raise LimitError(
            f"{len(files)} files were uploaded, but only {MOST_FILES} are allowed: remove some"
        )
    # gradio stores files with the same content once, and the first build that reads one deletes it.
    if not files or not all(Path(file).is_file() for file in files):
        raise RequestError("A file is no longer on the server: attach it again.")
    limits.check(text_bytes=sum(Path(file).stat().st_size for file in files))
    documents: list[Document] = []
    skipped: list[str] = []
    size = 0
    for file in files:
        for document in _read(file, skipped, deadline):
            # A file may hold far more text than it has bytes.
            size += len(f"{document.text}{document.source or ''}".encode())
            limits.check(text_bytes=size)
            documents.append(document)
    if not documents:
        raise RequestError("There is no text in these files: attach others.")
    return documents, len(skipped)


def _read(file: str, skipped: list[str], deadline: Deadline) -> Iterator[Document]:
    name = Path(file).name
    with Path(file).open("rb") as opened:
        packed = opened.read(8).startswith(_PACKED) and not name.lower().endswith(_ARCHIVES)
    if packed or not name.lower().endswith(SUFFIXES):
        raise RequestError(
            f"{name} cannot be read: attach text, JSON lines or documents "
            f"({', '.join(SUFFIXES[:7])}), not packed."
        )
    reasons: list[str] = []

    def on_skip(_: str, reason: str) -> None:
        reasons.append(reason)
        skipped.append(name)

    try:
        for document in read_corpus([file], on_skip=on_skip, on_bytes=lambda _: deadline.check()):
            # No other uri is an address for a visitor, and lines are no places to name.
            document = replace(document, uri=document.uri if is_web(document.uri) else None)
            if not document.title:
                blocks = [
                    replace(block, place="") if block.place.startswith("line ") else block
                    for block in document.blocks
                ]
                document = replace(document, title=document.id, blocks=blocks, metadata={})
            yield document
    except CorpusError as error:
        reason = reasons[0] if reasons else 'it must be JSON lines with a "text" in each'
        if "--" in reason:  # the command line has such options, and the page has none
            reason = reason.partition(";")[0]
        raise RequestError(f"{name} cannot be read: {reason}.") from error


def build_steps(
    session: Session, documents: Sequence[Document], room: Path, deadline: Deadline
) -> Iterator[tuple[str, int, int | None] | Datastore]:
    """Yields the progress of a build, and the datastore.

    Each step of the progress has a phase, what is done, and the whole, None if that is not known.
    The datastore has the settings and the gate of the first one. The folder `room` is deleted if
    the build fails.
    """
    library, like = session.library, session.library.store.manifest
    done = False

    def run(emit: Callable[[Any], None]) -> None:
        store = build_datastore(
            library.model,
            library.tokenizer,
            documents,
            room / YOUR_TEXT,
            key=like.key.name,
            index=IndexConfig("auto", metric=like.metric),
            **KNNConfig.of(like.settings).stored_values(),
            batch_tokens=1024,
            source="a visitor's own text",
            progress=deadline.watch(lambda *step: emit(step)),
        )
        emit(store.folder)

    try:
        for steps in emitted({"build": run}, deadline):
            for step in steps[-1:]:
                if isinstance(step, Path):
                    deadline.check()
                    store = Datastore(step)
                    store.gate_arrays = library.store.gate_arrays
                    done = True
                    yield store
                else:
                    yield step
    finally:
        if not done:
            shutil.rmtree(room, ignore_errors=True)
