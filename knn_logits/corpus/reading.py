"""Reads the documents of the paths that a user names: which files, in which order, by which ids."""

from __future__ import annotations

import itertools
import json
import os
import stat
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from knn_logits.corpus.documents import Document, is_there, unique_id, visible, with_line_feeds
from knn_logits.corpus.file_rows import Reading, read_rows
from knn_logits.corpus.rows import (
    PAIR_KEYS,
    Row,
    Skip,
    SourceFile,
    display_name,
    fields_of,
    first_line,
    plain_values,
)
from knn_logits.corpus.sandbox import Sandbox
from knn_logits.errors import CorpusError, MissingDependencyError
from knn_logits.printable import first_few
from knn_logits.store import layout
from knn_logits.store.blocks import BLOCKS

HUB_PREFIX = "hf:"
_KINDS = "documents, text files, JSON lines (.jsonl), parquet, folders of these, or hf:DATASET"


def read_corpus(
    paths: Sequence[str],
    *,
    on_skip: Callable[[str, str], None] | None = None,
    pairs: bool = False,
    pair_fields: tuple[str, str] = PAIR_KEYS,
    text_field: str = "text",
    on_note: Callable[[str, str], None] | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[Document]:
    r"""Reads documents from files, folders and datasets of the Hugging Face Hub.

    A path is one of:

    - JSON lines (`.jsonl`, `.ndjson`): each line is a document with `text` and, optionally, `id`,
      `title` and `uri`. Other keys become metadata. Blank lines are skipped. In place of `text`, a
      line may have `question` and `answer`.
    - `.json`: such lines, or one such object, or a list of them. Anything else is text.
    - `.parquet`: each row is a document, with columns of the same names.
    - PDF, HTML, .docx, .epub, .ipynb, .eml: one document. Its pages, headings or cells are the
      places of `Document.blocks`. All but notebooks and mail need the extra `documents`. These
      files, Markdown, .csv and parquet are parsed in a child process of limited memory and time.
    - any other file: one document, whose places are its lines, or the headings of Markdown. A byte
      order mark, soft hyphens and characters of no width are dropped, and line ends become `\n`. A
      very large file becomes several documents with one id.
    - gzip of all these.
    - a folder: all files below it, sorted by their path part by part. Hidden files are left out.
      Links to folders, and links that leave the folder, are skipped.
    - `hf:DATASET[:CONFIG[:SPLIT]]`: a dataset, which is streamed (extra `datasets`). The default
      split is `train`, and `hf:DATASET::SPLIT` takes the default configuration.

    What cannot be read is skipped: text in an unknown encoding, binary, encrypted and damaged
    files, gzip and rows that are far larger than text, files without permission, blank documents,
    and lone surrogates. The rows before the damage are read. A second document with the same id
    gets `#2` appended, and the next one `#3`. Memory holds one document and all ids.

    Args:
        paths: What to read, in this order. Arguments are checked at once, files in their turn.
        on_skip: Called with a name and a reason for everything that is skipped.
        pairs: Read rows with `source` and `target` instead of `text`, for encoder-decoder models.
        pair_fields: The names of these two fields; `translation.en` is the field `en` of the
            object `translation`.
        text_field: The name of the field with the text; `meta.body` is the field `body` of `meta`.
        on_note: Called with a name and what the user should know about a file that was read.
        on_bytes: Called with the number of bytes on disk read so far, over all files, up to that of
            `corpus_bytes`. While a file is parsed, it is called ten times a second, and an
            exception ends the reading.

    Raises:
        CorpusError: when nothing is given, a path does not exist, a row is malformed, or the
            corpus holds no document.
        MissingDependencyError: when a path starts with `hf:` and `datasets` is not installed.
    """
    names = checked_paths(paths)
    for name in names:
        if name.startswith(HUB_PREFIX):  # what would be refused after hours of other files
            _dataset_loader(name)
    keys = pair_fields if pairs else (text_field,)
    return _documents(names, keys, on_skip or _ignore, on_note or _ignore, on_bytes or _ignore)


def corpus_bytes(paths: Sequence[str]) -> int | None:
    """Returns how many bytes on disk `read_corpus` would read; None if that is not known."""
    names = checked_paths(paths)
    if any(name.startswith(HUB_PREFIX) for name in names):
        return None
    return sum(file.size for name in names for file in _files(Path(name), _ignore))


def _ignore(*_: object) -> None:
    """Takes what nobody asked to be told."""


def checked_paths(paths: Sequence[str]) -> list[str]:
    """Names the parts of a corpus; `CorpusError` where there is none."""
    names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    names = [os.fspath(name) for name in names]
    if not names:
        raise CorpusError(f"no corpus given; pass {_KINDS}")
    for name in names:
        if not name.startswith(HUB_PREFIX) and not is_there(name):
            raise CorpusError(
                f"{display_name(name)[:200]!r} does not exist; check the path, or use hf:DATASET "
                "for a dataset on the Hugging Face Hub"
            )
    return names


def _documents(
    names: list[str],
    keys: tuple[str, ...],
    on_skip: Skip,
    on_note: Skip,
    on_bytes: Callable[[int], None],
) -> Iterator[Document]:
    skipped: list[str] = []
    ids: dict[str, int] = {}
    last, done = "", 0

    def skip(name: str, reason: str) -> None:
        skipped.append(f"{name}: {reason}")
        on_skip(name, reason)

    with Sandbox(beat=lambda: on_bytes(done)) as sandbox:
        reading = Reading(keys, skip, on_note, sandbox)
        for row, consumed in _rows(names, reading):
            done = consumed
            on_bytes(done)
            document = None if row is None else _document(row, reading, ids, last)
            if document is not None:
                last = document.id
                yield document
    if not ids:
        count = f"{len(skipped)} skipped, the first {skipped[0]}" if skipped else "nothing is there"
        listed = first_few([display_name(name) for name in names])
        raise CorpusError(f"{listed}: no readable document: {count}; pass {_KINDS}")


def _rows(names: list[str], reading: Reading) -> Iterator[tuple[Row | None, int]]:
    """Yields the rows with the number of bytes read so far, and each file's end without a row."""
    before = 0
    for name in names:
        if name.startswith(HUB_PREFIX):
            yield from ((row, before) for row in _hub_rows(name, reading.keys))
            continue
        for file in _files(Path(name), reading.skip):
            for row in read_rows(file, reading):
                yield row, before + file.consumed
            before += file.size
            yield None, before


def _files(root: Path, skip: Skip) -> Iterator[SourceFile]:
    """Yields the files of a path, sorted by their path part by part."""
    found: list[Path] = []
    if root.is_dir():
        denied: list[OSError] = []
        for place, folders, files in os.walk(root, onerror=denied.append):
            # A datastore may be that of the build.
            if {layout.MANIFEST, layout.JOURNAL} & {*files}:
                folders.clear()
                continue
            folders[:] = [name for name in folders if not name.startswith(".")]
            links = [name for name in folders if Path(place, name).is_symlink()]
            names = [name for name in files if not name.startswith(".")]
            found += [Path(place, name) for name in names + links]
        for error in denied:
            skip(display_name(str(error.filename)), first_line(error))
    for path in sorted(found) if root.is_dir() else [root]:
        shown, inside = display_name(str(path)), path != root
        try:
            if inside and (path.is_dir() or _leaves(path, root)):
                skip(shown, "a link to a folder, or out of this one; pass its target as well")
            elif not stat.S_ISREG(path.stat().st_mode):  # reading a pipe might never end
                skip(shown, "not a regular file")
            else:
                name = path.relative_to(root).as_posix() if inside else path.name
                # macOS writes an accent as a character of its own, and nobody types it so.
                name = unicodedata.normalize("NFC", display_name(name))
                yield SourceFile(path, name, path.stat().st_size)
        except OSError as error:
            skip(shown, first_line(error))


def _leaves(path: Path, root: Path) -> bool:
    """Whether a path is a link out of the folder. The Hub's cache links to the blobs beside it."""
    if not path.is_symlink():
        return False
    target, folder = path.resolve(), root.resolve()
    cached = folder.parent.name == "snapshots" and target.parent == folder.parents[1] / "blobs"
    return not (cached or target.is_relative_to(folder))


def _document(row: Row, reading: Reading, ids: dict[str, int], last: str) -> Document | None:
    fields = dict(row.fields)
    text = str(fields.pop(reading.keys[-1], None) or fields.pop("text", ""))
    source = str(fields.pop(reading.keys[0])) if len(reading.keys) > 1 else None
    if not row.blocks:
        text = visible(with_line_feeds(text))
    if not text.strip() or (source is not None and not source.strip()):
        reading.skip(row.where, "empty")
        return None
    fields.pop(BLOCKS, None)
    try:
        json.dumps(row.fields, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        reading.skip(row.where, "a lone surrogate, which is not a character")
        return None
    except ValueError:
        fields = plain_values(fields)
    names = (fields.pop(key, None) for key in ("id", "title", "uri"))
    name, title, uri = (None if one in (None, "") else str(one) for one in names)
    return Document(
        text=text,
        id=last if row.part else unique_id(name or row.name, ids),
        title=title,
        uri=uri,
        metadata=fields,
        source=source,
        blocks=tuple(row.blocks),
    )


def _dataset_loader(name: str) -> Callable[[], Any]:
    """Returns a function that opens the stream of a dataset; needs the library `datasets`."""
    dataset, config, split, *_ = f"{name.removeprefix(HUB_PREFIX)}::".split(":", 2)
    if not dataset.strip():
        raise CorpusError(
            f"{display_name(name)!r} is not a dataset name; use hf:DATASET:CONFIG:SPLIT"
        )
    try:
        from datasets import load_dataset
    except ImportError as error:  # Python imports a folder of this name as a package
        raise MissingDependencyError(
            f'{display_name(name)} needs datasets: pip install "knn-logits[datasets]"'
        ) from error
    split = split.rstrip(":") or "train"
    return partial(load_dataset, dataset, config or None, split=split, streaming=True)


def _hub_rows(name: str, keys: tuple[str, ...]) -> Iterator[Row]:
    """Streams the rows of a dataset. Nothing is skipped, since most of it would be lost unseen."""
    load, shown = _dataset_loader(name), display_name(name)
    rows: Iterator[Mapping[str, object]] | None = None
    for number in itertools.count(1):
        try:  # loading scripts, servers and decoders may raise any exception
            rows = iter(load()) if rows is None else rows
            values = next(rows, None)
        except Exception as error:
            raise CorpusError(
                f"{shown}: {type(error).__name__}: {first_line(error)}; check the connection and "
                "the name, hf:DATASET:CONFIG:SPLIT (hf:DATASET::SPLIT for the default "
                "configuration)"
            ) from error
        if values is None:
            return
        where = f"{shown}, row {number}"
        try:
            fields = plain_values(fields_of({**values}, keys))
        except ValueError as error:
            raise CorpusError(f"{where}: {error}") from None
        yield Row(fields, f"{shown}:{number}", where)
