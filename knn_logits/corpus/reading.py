"""Reads the documents of the paths that a user names: which files, in which order, by which ids."""

from __future__ import annotations

import itertools
import json
import os
import stat
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from knn_logits.corpus.documents import (
    Document,
    type_name,
    unique_id,
    visible,
    with_line_feeds,
)
from knn_logits.corpus.file_rows import Reading, read_parallel, read_rows, split_parallel
from knn_logits.corpus.formats import holds_rows, reader_of
from knn_logits.corpus.hub import HUB_PREFIX, load_datasets, parse_hub_name, read_hub
from knn_logits.corpus.rows import (
    PAIR_KEYS,
    Row,
    Schema,
    Skip,
    SourceFile,
    display_name,
    first_line,
    lifted,
    plain_values,
)
from knn_logits.corpus.sandbox import Sandbox
from knn_logits.corpus.texts import check_encoding
from knn_logits.errors import CorpusError
from knn_logits.printable import first_few
from knn_logits.store import layout
from knn_logits.store.blocks import BLOCKS

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
      `title` and `uri`. Other keys become metadata. Blank lines are skipped. In place of `text`, a
      line may have `question` and `answer`.
    - `.json`: such lines, or one such object, or a list of them. Anything else is text.
    - `.parquet`: each row is a document, with columns of the same names.
    - PDF, HTML, .docx, .pptx, .epub, .ipynb, .eml, .mbox, .rtf: one document. Its pages, headings,
      slides or cells are the places of `Document.blocks`. In .mbox each message is a document. All
      but notebooks and mail need the extra `documents`. These files, Markdown, .rst, .csv,
      subtitles and parquet are parsed in a child process of limited memory and time.
    - any other file: one document, whose places are its lines, or the headings of Markdown. A byte
      order mark, soft hyphens and characters of no width are dropped, and line ends become `\n`. A
      very large file becomes several documents with one id.
    - gzip of all these, recognised by `.gz` or by its first bytes.
    - a folder: all files below it, sorted by their path part by part. Hidden files are left out,
      and a folder that links reach twice is read once. Links that leave the folder are skipped.
    - `SOURCES::TARGETS`, with `pairs`: two text files with the same number of lines.
    - `hf:DATASET[:CONFIG[:SPLIT]]`: a dataset, which is streamed (extra `datasets`). The default
      split is `train`, and `hf:DATASET::SPLIT` takes the default configuration.

    What cannot be read is skipped: text in an unknown encoding, binary, encrypted and damaged
    files, gzip and rows that are far larger than text, files without permission, blank documents,
    and lone surrogates. The rows before the damage are read. A second document with the same id
    gets `#2` appended, and the next one `#3`. Memory holds one document and all ids.

    Args:
        paths: What to read, in this order. Arguments are checked at once, files in their turn.
        strict: Raise an error instead of skipping what cannot be read.
        on_skip: Called with a name and a reason for everything that is skipped.
        pairs: Read rows with `source` and `target` instead of `text`, for encoder-decoder models.
        pair_fields: The names of these two fields; `translation.en` is the field `en` of the
            object `translation`.
        text_field: The name of the field with the text; `meta.body` is the field `body` of `meta`.
        id_field: The name of the field with the id.
        title_field: The name of the field with the title.
        encoding: The encoding of text files, HTML and rows. None recognises it, in rows only UTF-8
            and UTF-16, in others any with the extra `documents`.
        on_note: Called with a name and what the user should know about a file that was read.
        on_bytes: Called with the number of bytes on disk read so far, over all files, up to that of
            `corpus_bytes`. While a file is parsed, it is called ten times a second, and an
            exception ends the reading.

    Raises:
        ConfigError: when Python does not know `encoding`.
        CorpusError: when nothing is given, a path does not exist, a row is malformed (strict or
            not), or the corpus holds no document.
        MissingDependencyError: when a path starts with `hf:` and `datasets` is not installed.
    """
    names = checked_paths(paths)
    keys = pair_fields if pairs else (text_field,)
    _check_readable(names, keys)
    schema = Schema(keys, id_field, title_field, check_encoding(encoding))
    progress = _Progress(on_bytes or (lambda _: None))
    skips = _Skips(strict, on_skip or (lambda *_: None))
    reading = Reading(schema, skips, on_note or (lambda *_: None), Sandbox(beat=progress.beat))
    return _documents(names, reading, progress)


def _check_readable(names: list[str], keys: tuple[str, ...]) -> None:
    """Refuses at once what would be refused after hours of other files."""
    pairs = len(keys) > 1
    if pairs and keys[0] == keys[1]:
        raise CorpusError(f'"{keys[0]}" cannot be both source and target; use two different fields')
    for name in names:
        if name.startswith(HUB_PREFIX):
            parse_hub_name(name)
            load_datasets(name)
        elif pairs and not (
            split_parallel(name) or Path(name).is_dir() or holds_rows(reader_of(Path(name).name))
        ):
            raise CorpusError(
                f"{display_name(name)} is plain text without source and target; for an encoder-"
                'decoder model, use JSON lines (.jsonl) or parquet with "source" and "target" '
                "in each row, or two parallel files, written SOURCES::TARGETS"
            )


def corpus_bytes(paths: Sequence[str]) -> int | None:
    """Returns how many bytes on disk `read_corpus` would read; None if that is not known."""
    names = checked_paths(paths)
    if any(name.startswith(HUB_PREFIX) for name in names):
        return None
    total = 0
    for name in itertools.chain.from_iterable(split_parallel(name) or (name,) for name in names):
        for file in _files(Path(name), lambda *_: None):
            if file.size is None:
                return None
            total += file.size
    return total


@dataclass
class _Skips:
    """Handles parts that cannot be read, and counts them."""

    strict: bool
    on_skip: Skip
    count: int = 0
    first: str = ""

    def __call__(self, name: str, reason: str) -> None:
        if self.strict:
            raise CorpusError(f"{name}: {reason}; repair or remove it, or omit --strict to skip it")
        self.count += 1
        self.first = self.first or f"{name}: {reason}"
        self.on_skip(name, reason)


@dataclass
class _Progress:
    """Reports the bytes that were read, over all files."""

    on_bytes: Callable[[int], None]
    before: int = 0
    done: int = 0

    def __call__(self, consumed: int) -> None:
        self.done = self.before + consumed
        self.beat()

    def beat(self) -> None:
        """Reports again how much was read."""
        self.on_bytes(self.done)

    def end(self, size: int | None) -> None:
        """Notes the end of a file."""
        self.before += size or 0
        self(0)


def checked_paths(paths: Sequence[str]) -> list[str]:
    """Names the parts of a corpus; `CorpusError` where there is none."""
    names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    names = [os.fspath(name) for name in names]
    if not names:
        raise CorpusError(f"no corpus given; pass {_KINDS}")
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
                f"{shown!r} does not exist; check the path, or use hf:DATASET for a dataset on "
                "the Hugging Face Hub"
            ) from None
        except (OSError, ValueError) as error:
            raise CorpusError(
                f"{shown!r} is not a path ({first_line(error)}); pass {_KINDS}"
            ) from None
    return names


def _documents(names: list[str], reading: Reading, progress: _Progress) -> Iterator[Document]:
    ids: dict[str, int] = {}
    last = ""
    with reading.sandbox:
        for row in _rows(names, reading, progress):
            document = _document(row, reading, ids, last)
            if document is not None:
                last = document.id
                yield document
    if not ids:
        skips = cast(_Skips, reading.skip)
        count, first = "no file is there", " (hidden ones are not read)"
        if skips.count:
            count, first = f"{skips.count} skipped", f", the first {skips.first}"
        elif any(Path(name).is_file() for name in names):
            count, first = "no row is there", ""
        listed = first_few([display_name(name) for name in names])
        raise CorpusError(f"{listed}: no readable document: {count}{first}; pass {_KINDS}")


def _rows(names: list[str], reading: Reading, progress: _Progress) -> Iterator[Row]:
    keys = reading.schema.keys
    for name in names:
        if name.startswith(HUB_PREFIX):
            yield from read_hub(name, keys)
            continue
        parallel = split_parallel(name) if reading.schema.pairs else None
        if parallel:
            source, target = map(_text_file, parallel)
            for row in read_parallel(source, target, keys, reading.skip):
                progress(source.consumed + target.consumed)
                yield row
            progress.end((source.size or 0) + (target.size or 0))
            continue
        for file in _files(Path(name), reading.skip):
            for row in read_rows(file, reading):
                progress(file.consumed)
                yield row
            progress.end(file.size)


def _text_file(name: str) -> SourceFile:
    def fail(name: str, reason: str) -> None:
        raise CorpusError(f"{name} cannot be read ({reason}); download it again")

    if Path(name).is_dir():
        raise CorpusError(
            f"{display_name(name)} is a folder; pass two text files as SOURCES::TARGETS"
        )
    return next(_files(Path(name), fail))


def _files(root: Path, skip: Skip) -> Iterator[SourceFile]:
    """Yields the files of a path, in order."""
    seen: set[tuple[int, int]] = set()
    waiting = [(root, "")]
    while waiting:
        path, relative = waiting.pop()
        shown = display_name(str(path))
        try:
            status = path.stat()
            if relative and _leaves(path, root):
                skip(shown, "a link that leaves the folder; pass its target as well")
                continue
            if stat.S_ISDIR(status.st_mode):
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                if any((path / name).exists() for name in (layout.MANIFEST, layout.JOURNAL)):
                    continue  # this is a datastore, perhaps that of the build
                children = [c.name for c in path.iterdir() if not c.name.startswith(".")]
                for child in sorted(children, reverse=True):
                    waiting.append((path / child, f"{relative}/{child}" if relative else child))
                continue
        except OSError as error:
            skip(shown, first_line(error))
            continue
        size = status.st_size if stat.S_ISREG(status.st_mode) else None
        if relative and size is None:  # reading a pipe in a folder might never end
            skip(shown, "not a regular file")
            continue
        # macOS writes an accent as a character of its own, and nobody types it so.
        name = unicodedata.normalize("NFC", display_name(relative or path.name))
        yield SourceFile(path, name, size)


def _leaves(path: Path, root: Path) -> bool:
    """Whether a path is a link out of the folder. The Hub's cache links to the blobs beside it."""
    if not path.is_symlink():
        return False
    target, folder = path.resolve(), root.resolve()
    cached = folder.parent.name == "snapshots" and target.parent == folder.parents[1] / "blobs"
    return not (cached or target.is_relative_to(folder))


def _document(row: Row, reading: Reading, ids: dict[str, int], last: str) -> Document | None:
    schema, skip = reading.schema, reading.skip
    fields = lifted(dict(row.fields), (schema.id, schema.title, "uri"))
    text = str(fields.pop(schema.keys[-1], None) or fields.pop("text", ""))
    source = str(fields.pop(schema.keys[0])) if schema.pairs else None
    if not row.blocks:
        text = visible(with_line_feeds(text))
    if not text.strip() or (source is not None and not source.strip()):
        skip(row.where, "empty")
        return None
    fields.pop(BLOCKS, None)
    try:
        json.dumps(row.fields, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        skip(row.where, "a lone surrogate, which is not a character")
        return None
    except ValueError:
        fields = plain_values(fields)
    name, title, uri = (
        _label(fields.pop(key, None), key, row) for key in (schema.id, schema.title, "uri")
    )
    return Document(
        text=text,
        id=last if row.part else unique_id(name or row.name, ids),
        title=title,
        uri=uri,
        metadata=fields,
        source=source,
        blocks=tuple(row.blocks),
    )


def _label(value: object, key: str, row: Row) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise CorpusError(f'{row.where}: "{key}" is {type_name(value)}, not a string; fix or remove it')
