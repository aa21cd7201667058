"""Reads the documents of the paths that a user names, one at a time.

This module knows which files make a corpus, their order and their ids, and what happens to files
that cannot be read. It does not know tokens or models. `formats` and `hub` read the rows of a file.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from knn_logits.corpus.documents import Document, unique_id
from knn_logits.corpus.encoding import check_encoding
from knn_logits.corpus.extracting import Extractor
from knn_logits.corpus.hub import HUB_PREFIX, load_datasets, parse_hub_name, read_hub
from knn_logits.corpus.one_file import is_text, read_rows
from knn_logits.corpus.parallel import read_parallel, split_parallel
from knn_logits.corpus.rows import (
    PAIR_KEYS,
    Row,
    Skip,
    SourceFile,
    Wanted,
    display_name,
    first_line,
    lifted,
    type_name,
)
from knn_logits.errors import CorpusError
from knn_logits.printable import first_few
from knn_logits.store import layout

_KINDS = "documents, text files, JSON lines (.jsonl), parquet, folders of these, or hf:DATASET"


def read_corpus(
    paths: Sequence[str],
    *,
    strict: bool = False,
    on_skip: Callable[[str, str], None] | None = None,
    pairs: bool = False,
    pair_fields: tuple[str, str] = PAIR_KEYS,
    text_field: str = "text",
    id_field: str = "id",
    title_field: str = "title",
    encoding: str | None = None,
    on_note: Callable[[str, str], None] | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[Document]:
    r"""Reads documents from files, folders and datasets of the Hugging Face Hub.

    A path is one of:

    - JSON lines (`.jsonl`, `.ndjson`): each line is a document with `text` and, optionally, `id`,
      `title` and `uri`. Other keys become metadata. Blank lines are skipped.
    - `.json`: such lines, or one such object, or a list of them. Anything else is text.
    - `.parquet`: each row is a document, with columns of the same names.
    - PDF, HTML, .docx, .pptx, .epub, .ipynb, .eml, .mbox, .rtf: one document. Its pages, headings,
      slides or cells become `Document.places`. In .mbox each message is a document. All but
      notebooks and mail need the extra `documents`. These files are parsed in a child process of
      limited memory and time.
    - any other file: one document, whose lines are its places. The places of Markdown are its
      headings. A byte order mark is dropped, and line ends become `\n`. An encoding other than
      UTF-8 is named by `encoding`, or recognised with the extra `documents`. A very large file
      becomes several documents with one id.
    - gzip of all these but parquet, recognised by `.gz` or by its first bytes.
    - a folder: all files below it, sorted by their path part by part. Hidden files are left out,
      and a folder that links reach twice is read once.
    - `SOURCES::TARGETS`, with `pairs`: two text files with the same number of lines.
    - `hf:DATASET[:CONFIG[:SPLIT]]`: a dataset, which is streamed. The default split is `train`, and
      `hf:DATASET::SPLIT` takes the default configuration. This needs the extra `datasets`.

    What cannot be read is skipped: text in an unknown encoding, binary, encrypted and damaged
    files, files without permission, blank documents, and lone surrogates. The rows before the
    damage in a JSON lines or parquet file are read. A second document with the same id gets `#2`
    appended, and the next one `#3`.

    Arguments are checked at once, and files when their turn comes. Memory holds one document, the
    names of a folder's files, and all ids. A list in `.json` or a batch of parquet needs memory for
    several documents.

    Args:
        paths: What to read, in this order.
        strict: Raise an error instead of skipping what cannot be read.
        on_skip: Called with a name and a reason for everything that is skipped.
        pairs: Read rows with `source` and `target` instead of `text`, for encoder-decoder models.
        pair_fields: The names of these two fields; `translation.en` is the field `en` of the
            object `translation`.
        text_field: The name of the field with the text; `meta.body` is the field `body` of `meta`.
        id_field: The name of the field with the id.
        title_field: The name of the field with the title.
        encoding: The encoding of text files, HTML and rows. None recognises it; in rows it
            recognises UTF-8 and UTF-16 only.
        on_note: Called with a name and what the user should know about a file that was read. Its
            encoding may be a guess, or the attachments of a message may be left out.
        on_bytes: Called with the number of bytes on disk read so far, over all files. A compressed
            file counts with its compressed bytes. The last number is that of `corpus_bytes`.

    Returns:
        An iterator over the documents.

    Raises:
        ConfigError: when Python does not know `encoding`.
        CorpusError: when nothing is given, a path does not exist, a row is malformed (strict or
            not), or the corpus holds no document.
        MissingDependencyError: when a path starts with `hf:` and `datasets` is not installed.
    """
    if pairs and pair_fields[0] == pair_fields[1]:
        raise CorpusError(f'"{pair_fields[0]}" cannot be both source and target; name two fields')
    names = _checked(paths)
    for name in names:
        if name.startswith(HUB_PREFIX):
            parse_hub_name(name)
            load_datasets(name)
        elif pairs and split_parallel(name):
            continue
        elif pairs and not Path(name).is_dir() and is_text(Path(name)):
            raise CorpusError(
                f"{display_name(name)} is plain text and has no source and target; give an "
                'encoder-decoder model JSON lines (.jsonl) or parquet with "source" and "target" '
                "in each row, or two parallel files, written SOURCES::TARGETS"
            )
    keys = pair_fields if pairs else (text_field,)
    wanted = Wanted(keys, id_field, title_field, check_encoding(encoding))
    tell = _Tell(
        _Skips(strict, on_skip), on_note or (lambda *_: None), on_bytes or (lambda _: None)
    )
    return _documents(names, wanted, tell)


def corpus_bytes(paths: Sequence[str]) -> int | None:
    """Returns how many bytes on disk `read_corpus` would read, for a progress bar.

    Returns:
        The sum of the files' sizes on disk. None if it is not known beforehand, as for `hf:` and
        pipes.

    Raises:
        CorpusError: when nothing is given, or a path does not exist.
    """
    names = _checked(paths)
    if any(name.startswith(HUB_PREFIX) for name in names):
        return None
    total = 0
    for name in itertools.chain.from_iterable(split_parallel(name) or (name,) for name in names):
        for file in _files(Path(name), lambda *_: None):
            if file.size is None:
                return None
            total += file.size
    return total


class _Skips:
    """Handles parts that cannot be read, and counts them."""

    def __init__(self, strict: bool, on_skip: Callable[[str, str], None] | None) -> None:
        self.strict = strict
        self.on_skip = on_skip
        self.count = 0
        self.first = ""

    def __call__(self, name: str, reason: str) -> None:
        if self.strict:
            raise CorpusError(
                f"{name}: {reason}; repair or remove it, or leave --strict out to skip it"
            )
        self.count += 1
        self.first = self.first or f"{name}: {reason}"
        if self.on_skip is not None:
            self.on_skip(name, reason)


def _checked(paths: Sequence[str]) -> list[str]:
    names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    names = [os.fspath(name) for name in names]
    if not names:
        raise CorpusError(f"no corpus is given; name {_KINDS}")
    parts = (split_parallel(name) or (name,) for name in names if not name.startswith(HUB_PREFIX))
    for name in itertools.chain.from_iterable(parts):
        shown = display_name(name)[:200]
        try:
            if not name:  # Path takes an empty name for the current folder
                raise FileNotFoundError
            Path(name).stat()
        except PermissionError:
            pass  # the path exists, and is skipped later like any file without permission
        except (FileNotFoundError, NotADirectoryError):
            raise CorpusError(
                f"{shown!r} does not exist; check the path, or write hf:DATASET for "
                "a dataset of the Hugging Face Hub"
            ) from None
        except (OSError, ValueError) as error:
            raise CorpusError(
                f"{shown!r} is not a path ({first_line(error)}); name {_KINDS}"
            ) from None
    return names


@dataclass(frozen=True)
class _Tell:
    """The callbacks of a reader: for skipped parts, for notes about files, and for bytes read."""

    skip: _Skips
    note: Skip
    read: Callable[[int], None]


def _documents(names: list[str], wanted: Wanted, tell: _Tell) -> Iterator[Document]:
    ids: dict[str, int] = {}
    last = ""
    with Extractor() as extractor:
        for row in _rows(names, wanted, tell, extractor):
            document = _document(row, wanted, ids, last, tell.skip)
            if document is not None:
                last = document.id
                yield document
    if not ids:
        skips = tell.skip
        listed = first_few([display_name(name) for name in names])
        found = "no file is there" if not skips.count else f"{skips.count} skipped"
        first = f", the first {skips.first}" if skips.count else " (hidden ones are not read)"
        if not skips.count and any(Path(name).is_file() for name in names):
            found, first = "no row is there", ""
        raise CorpusError(f"{listed}: no readable document: {found}{first}; name {_KINDS}")


def _rows(names: list[str], wanted: Wanted, tell: _Tell, extractor: Extractor) -> Iterator[Row]:
    before = 0
    for name in names:
        if name.startswith(HUB_PREFIX):
            yield from read_hub(name, wanted.keys)
            continue
        parallel = split_parallel(name) if wanted.pairs else None
        if parallel:
            source, target = _only_file(parallel[0]), _only_file(parallel[1])
            for row in read_parallel(source, target, wanted.keys, tell.skip):
                tell.read(before + source.consumed + target.consumed)
                yield row
            before += (source.size or 0) + (target.size or 0)
            tell.read(before)
            continue
        for file in _files(Path(name), tell.skip):
            for row in read_rows(file, wanted, tell.skip, tell.note, extractor):
                tell.read(before + file.consumed)
                yield row
            before += file.size or 0
            tell.read(before)


def _only_file(name: str) -> SourceFile:
    path = Path(name)
    if path.is_dir():
        raise CorpusError(
            f"{display_name(name)} is a folder; give two text files as SOURCES::TARGETS"
        )
    try:
        status = path.stat()
    except OSError as error:
        raise CorpusError(
            f"{display_name(name)} cannot be read ({first_line(error)}); get it again"
        ) from error
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    return SourceFile(path, display_name(path.name), size)


def _files(root: Path, skip: Skip) -> Iterator[SourceFile]:
    seen: set[tuple[int, int]] = set()
    waiting = [(root, "")]
    while waiting:
        path, relative = waiting.pop()
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                if any((path / name).exists() for name in (layout.MANIFEST, layout.JOURNAL)):
                    continue  # this is a datastore, perhaps the one that is being built
                children = [c.name for c in path.iterdir() if not c.name.startswith(".")]
                for child in sorted(children, reverse=True):
                    below = f"{relative}/{child}" if relative else child
                    waiting.append((path / child, below))
                continue
        except OSError as error:
            skip(display_name(str(path)), first_line(error))
            continue
        regular = stat.S_ISREG(status.st_mode)
        if relative and not regular:  # reading a pipe in a folder might never end
            skip(display_name(str(path)), "not a regular file")
            continue
        name = display_name(relative or path.name)
        yield SourceFile(path, name, status.st_size if regular else None)


def _document(
    row: Row, wanted: Wanted, ids: dict[str, int], last: str, skip: Skip
) -> Document | None:
    keys = wanted.keys
    named = {"id": wanted.id, "title": wanted.title, "uri": "uri"}
    fields = lifted(dict(row.fields), tuple(set(named.values())))
    text = str(fields.pop(keys[-1], None) or fields.pop("text", ""))
    source = str(fields.pop(keys[0])) if len(keys) > 1 else None
    if not text.strip() or (source is not None and not source.strip()):
        skip(row.where, "empty")
        return None
    try:
        json.dumps(row.fields, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        skip(row.where, "a lone surrogate, which is not a character")
        return None
    labels = {key: _label(fields.pop(name, None), name, row) for key, name in named.items()}
    return Document(
        text=text,
        id=last if row.part else unique_id(labels["id"] or row.name, ids),
        title=labels["title"],
        uri=labels["uri"],
        metadata=fields,
        source=source,
        places=tuple(row.places),
    )


def _label(value: object, key: str, row: Row) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise CorpusError(
        f'{row.where}: "{key}" is {type_name(value)}, not a string; correct or remove it'
    )
