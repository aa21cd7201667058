"""Reads rows from two parallel text files: line n of one is the source of line n of the other.

This module knows the notation `SOURCE::TARGET`. It does not know what a document is.
"""

import gzip
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from knn_logits.corpus.rows import Row, Skip, SourceFile, display_name, first_line
from knn_logits.errors import CorpusError

_BETWEEN = "::"


def split_parallel(name: str) -> tuple[str, str] | None:
    """Returns the two files that `SOURCE::TARGET` names; None for another name or a real path."""
    source, between, target = name.partition(_BETWEEN)
    if not between or not source or not target or Path(name).exists():
        return None
    return source, target


def read_parallel(
    source: SourceFile, target: SourceFile, keys: tuple[str, ...], skip: Skip
) -> Iterator[Row]:
    """Reads the lines of two files side by side. The files may be gzipped.

    Args:
        source: The file of the sources.
        target: The file of the targets.
        keys: The names of the two fields in a row.
        skip: Called with a name and a reason for a line that cannot be read.

    Raises:
        CorpusError: when a file cannot be read, or one has more lines than the other.
    """
    pairs = itertools.zip_longest(_lines(source), _lines(target))
    for number, (read, written) in enumerate(pairs, start=1):
        if read is None or written is None:
            short, long = (source, target) if read is None else (target, source)
            raise CorpusError(
                f"{short.shown} ends after {number - 1} lines, but {long.shown} goes on: give two "
                "files with the same number of lines"
            )
        where = f"{target.shown}, line {number}"
        try:
            texts = _text(read, number), _text(written, number)
        except UnicodeDecodeError:
            skip(where, "not UTF-8 text")
            continue
        yield Row(dict(zip(keys, texts, strict=True)), f"{target.name}:{number}", where)


def _text(line: bytes, number: int) -> str:
    text = line.decode("utf-8")
    return (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")


def _lines(file: SourceFile) -> Iterator[bytes]:
    try:
        with file.path.open("rb") as raw:
            zipped = raw.peek(2).startswith(b"\x1f\x8b")
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw) if zipped else raw)
            for line in stream:
                file.advance(raw)
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(
            f"{display_name(str(file.path))} cannot be read ({first_line(error)}); get it again"
        ) from error
