"""Builds a datastore from the files that a visitor attaches."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from knn_logits import (
    Datastore,
    Document,
    IndexConfig,
    KNNConfig,
    build_datastore,
    read_corpus,
    sync_documents,
)
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
# The part of a reason that names an exception of Python.
_EXCEPTION = re.compile(r" \(\w+: .*\)")
# Files that begin like this are packed, and could grow a thousandfold when they are read.
_PACKED = (b"\x1f\x8b", b"PAR1", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")


def read_files(
    session: Session, paths: Sequence[str], deadline: Deadline, before: Mapping[str, int]
) -> tuple[list[Document], dict[str, int], list[str]]:
    """Reads the files that a visitor attached, within limits that hold for those `before` too.

    Returns:
        The documents, the bytes of text of each file, earlier ones too, and what cannot be read.
    """
    documents, files, unread = list[Document](), {**before}, list[str]()
    most = session.limits.text_bytes
    number = len(before.keys() - {Path(path).name for path in paths}) + len(paths)
    if number > MOST_FILES:
        raise LimitError(f"that would be {number} files, but only {MOST_FILES} are allowed")
    # gradio stores files with the same content once, and the first build that reads one deletes it.
    if not paths or not all(Path(path).is_file() for path in paths):
        raise RequestError("A file is no longer on the server: attach it again.")
    session.limits.check(text_bytes=sum(Path(path).stat().st_size for path in paths))
    for path in paths:
        name = Path(path).name
        for document in _read(path, unread, deadline):
            # A file may hold far more text than it has bytes.
            size = len(f"{document.text}{document.source or ''}".encode())
            files[name] = files.get(name, 0) + size
            if sum(files.values()) > most:
                raise LimitError(
                    f"your documents would have more than {most:,} bytes of text together: "
                    "attach less, or reload the page to begin anew"
                )
            documents.append(document)
    if not documents:
        raise RequestError(f"Could not read {', '.join(unread)}.")
    return documents, files, unread


def _read(path: str, unread: list[str], deadline: Deadline) -> Iterator[Document]:
    """Yields the documents of a file, and notes what cannot be read."""
    name, reasons = Path(path).name, list[str]()
    with Path(path).open("rb") as opened:
        packed = opened.read(8).startswith(_PACKED) and not name.lower().endswith(_ARCHIVES)
    if packed or not name.lower().endswith(SUFFIXES):
        unread.append(f"{name} (no text and no document: {', '.join(SUFFIXES[:7])}, not packed)")
        return
    try:
        for document in read_corpus(
            [path],
            on_skip=lambda _, reason: reasons.append(reason),
            on_bytes=lambda _: deadline.check(),
        ):
            # No other uri is an address for a visitor, and lines are no places to name.
            document = replace(document, uri=document.uri if is_web(document.uri) else None)
            if not document.title:
                blocks = [
                    replace(block, place="") if block.place.startswith("line ") else block
                    for block in document.blocks
                ]
                document = replace(document, title=document.id, blocks=blocks, metadata={})
            yield document
        if reasons:
            unread.append(f"{len(reasons)} parts of {name}")
    except CorpusError:
        reason = reasons[0] if reasons else 'it must be JSON lines with a "text" in each'
        if "--" in reason:  # the command line has such options, and the page has none
            reason = reason.partition(";")[0]
        unread.append(f"{name} ({_EXCEPTION.sub('', reason)})")


def _file_of(id: str) -> str:
    """The file of a document, whose id may have the number of a line after the file's suffix."""
    return id.rstrip("0123456789:#")


def build_steps(
    session: Session,
    documents: Sequence[Document],
    room: Path,
    deadline: Deadline,
    old: Datastore | None = None,
) -> Iterator[tuple[str, int, int | None] | Datastore]:
    """Yields the progress of a build, and the datastore.

    Each step of the progress has a phase, what is done, and the whole, None if that is not known.
    The datastore has the settings and the gate of the first one, and the documents of the `old` one
    as well, but those of files that come again. The folder `room` is deleted if the build fails.
    """
    library, like, folder = session.library, session.library.store.manifest, room / YOUR_TEXT
    files = {_file_of(document.id) for document in documents}
    done = False

    def run(emit: Callable[[Any], None]) -> None:
        model, tokenizer = library.model, library.tokenizer
        progress = deadline.watch(lambda *step: emit(step))
        if old is None:
            build_datastore(
                model, tokenizer, documents, folder,
                key=like.key.name, index=IndexConfig("auto", metric=like.metric),
                **KNNConfig.of(like.settings).stored_values(),
                batch_tokens=1024, source="a visitor's own text", progress=progress,
            )  # fmt: skip
        else:
            shutil.copytree(old.folder, folder)  # which stays as it is until this one is whole
            sync_documents(
                model, tokenizer, folder, documents,
                force=True, keep=lambda id: _file_of(id) not in files,
                batch_tokens=1024, progress=progress,
            )  # fmt: skip
        emit(folder)

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
