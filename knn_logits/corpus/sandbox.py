"""Parses untrusted files in a child process, which cannot hang, fill the memory or write files.

The two speak JSON lines and no pickle, since a hostile file may have taken the child over.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from knn_logits.corpus.parsers import Begin, Fields, Left, Parser, Part, Text
from knn_logits.corpus.rows import LONGEST_ROW, Schema, UnreadableError, display_name
from knn_logits.corpus.texts import EXTRA
from knn_logits.errors import CorpusError
from knn_logits.store.blocks import KINDS

# The address space of the child in bytes. Python and its libraries take a tenth of it.
MEMORY = 2 << 30
# The seconds that the child may take for one answer and for a document; and for all documents, as
# many and these for each of their bytes.
PATIENCE_SECONDS, LONGEST_SECONDS, SECONDS_PER_BYTE = 60.0, 900.0, 60.0 / (1 << 20)
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from knn_logits.corpus.sandbox import serve; serve()"
)
# The most characters of a block, since an answer is read as a whole.
_LONGEST_BLOCK = 1 << 20
# The bytes and the seconds of rows and blocks that are sent together.
_BATCH, _BATCH_SECONDS = 1 << 18, 1.0
_LONGEST_LINE = LONGEST_ROW + (1 << 20)
_LINES_AHEAD = 8
_BEAT_SECONDS = 0.1
# Libraries reserve memory for every processor of a machine, which the limit would count.
_SMALL_PROCESS = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
_SMALL_PROCESS |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_REASONS = {
    "missing": f"its format needs more packages: {EXTRA}",
    "nesting": "nested too deeply to be read; save it again",
}
_CRASHED = "the library that reads it crashed; save it again"


class Sandbox:
    """Parses files in a child process, which starts with the first file."""

    def __init__(
        self,
        *,
        memory: int = MEMORY,  # bytes of address space, if the system can limit it
        patience: float = PATIENCE_SECONDS,  # seconds from one page, heading or row to the next
        longest: float = LONGEST_SECONDS,  # seconds for a document, and for many small ones
        beat: Callable[[], None] = lambda: None,  # ten times a second; an exception ends the work
        program: str = PROGRAM,  # the Python code that the child runs
    ) -> None:
        self._memory, self._patience = memory, patience
        self._longest = self._left = longest
        self._beat, self._program = beat, program
        self._child: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        self._lines: queue.Queue[bytes] = queue.Queue(_LINES_AHEAD)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def child(self) -> int | None:
        """The process id of the child; None before the first file and after the end."""
        return None if self._child is None else self._child.pid

    def parts(self, path: Path, reader: str, schema: Schema) -> Iterator[Part]:
        """Yields the parts of a regular file in order, as `reader` of the registry reads them."""
        if self._left <= 0:
            raise UnreadableError(
                "the files before it took all the time that files of their size may take, as with "
                "malicious ones; read it alone"
            )
        child = self._started()
        name = os.fsencode(path.resolve()).hex()
        request = {"path": name, "reader": reader, "schema": asdict(schema)}
        self._left += SECONDS_PER_BYTE * path.stat().st_size
        left = self._longest
        finished = False
        try:
            assert child.stdin is not None
            with contextlib.suppress(OSError):  # the child died while it waited
                child.stdin.write(json.dumps(request).encode() + b"\n")
                child.stdin.flush()
            while True:
                since = time.monotonic()
                try:
                    answers = self._next_answers(min(self._patience, left, self._left))
                finally:
                    taken = time.monotonic() - since
                    left, self._left = left - taken, self._left - taken
                for answer in answers:
                    if answer == ["end"]:
                        finished = True
                        return
                    part = self._part(answer)
                    if isinstance(part, Exception):
                        # A child that crashed, or that lacked memory, is replaced.
                        finished = str(part) != _CRASHED and answer != ["refused", "memory"]
                        raise part
                    if isinstance(part, Fields):
                        left = self._longest
                    yield part
        finally:
            if not finished:
                self.close()

    def close(self) -> None:
        child, self._child = self._child, None
        if child is None or self._pump is None:
            return
        child.kill()
        while self._pump.is_alive():  # it may wait to hand over a line
            with contextlib.suppress(queue.Empty):
                self._lines.get(timeout=0.01)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        child.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self.close()
            package = str(Path(__file__).parents[2])
            paths = json.dumps([package, *(path for path in sys.path if path)])
            command = [sys.executable, "-I", "-B", "-c", self._program, str(self._memory), paths]
            try:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, **_SMALL_PROCESS},
                )
            except OSError as error:
                raise UnreadableError(
                    f"cannot start a process to read it ({error}); free some memory"
                ) from None
            self._lines = queue.Queue(_LINES_AHEAD)
            arguments = (self._child.stdout, self._lines)
            self._pump = threading.Thread(target=_pump, args=arguments, daemon=True)
            self._pump.start()
        return self._child

    def _next_answers(self, seconds: float) -> list[object]:
        """Waits for the next line of the child, a list of answers."""
        end = time.monotonic() + seconds
        while True:
            self._beat()
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=_BEAT_SECONDS)
                break
            if time.monotonic() >= end:
                raise UnreadableError(
                    f"reading it took longer than {seconds:.0f} s, as with a damaged or "
                    "malicious file; save it again or split it"
                )
        with contextlib.suppress(ValueError, RecursionError):
            answers = json.loads(line)
            if isinstance(answers, list) and answers:
                return answers
        return [None]

    def _part(self, answer: Any) -> Part | UnreadableError | CorpusError:
        """Checks an answer of the child."""
        try:
            match answer:
                case ["begin", None | str() as title, int(number)]:
                    return Begin(None if title is None else _line(title, 300), number)
                case ["text", str(text), str(kind), str(place), str(link), done] if kind in KINDS:
                    share = min(1.0, max(0.0, float(done)))
                    return Text(text, kind, _line(place, 100), _line(link, 100), share)
                case ["fields", dict(fields), int(number), float() | int() as done]:
                    return Fields(fields, number, min(1.0, max(0.0, float(done))))
                case ["left", str(where), str(reason), bool(damaged)]:
                    return Left(_line(where, 100), _line(reason, 300), damaged)
                case ["wrong", str(reason)]:
                    return CorpusError(_line(reason, 1000))
                case ["refused", "memory"]:
                    return UnreadableError(
                        f"reading it takes more than {self._memory / (1 << 30):.3g} GiB, as with "
                        "a damaged or malicious file; split it"
                    )
                case ["refused", str(reason)]:
                    return UnreadableError(_REASONS.get(reason, _line(reason, 300)))
        except (ValueError, TypeError, OverflowError):
            pass
        return UnreadableError(_CRASHED)


@lru_cache(1024)  # the blocks of a page have one place
def _line(text: str, most: int) -> str:
    return display_name(text)[:most]


def _pump(stdout: Any, lines: queue.Queue[bytes]) -> None:
    """Passes the child's lines on, from a thread, and an empty one at their end."""
    with contextlib.suppress(OSError, ValueError):
        while line := stdout.readline(_LONGEST_LINE):
            lines.put(line)
    lines.put(b"")


# The following runs in the child.


def serve() -> None:
    """Answers requests, lines of JSON, until the pipe is closed. The memory is an argument."""
    # The output of a library must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    confine(int(sys.argv[1]))
    for line in sys.stdin:
        batch: list[bytes] = []
        size = 0
        since = time.monotonic()
        for answer in _parsed(**json.loads(line)):
            data = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
            if len(data) > LONGEST_ROW:
                reason = f"longer than {LONGEST_ROW:,} bytes; split it"
                data = json.dumps(["left", f"row {answer[2]}", reason, True]).encode()
            batch.append(data)
            late = time.monotonic() - since > _BATCH_SECONDS
            size += len(data)
            if answer[0] not in ("fields", "text") or late or size > _BATCH:
                answers.write(b"[" + b",".join(batch) + b"]\n")
                answers.flush()
                batch, size, since = [], 0, time.monotonic()


def confine(memory: int) -> None:
    """Limits this process's memory and forbids it to write files, if the system can do that."""
    try:
        import resource
    except ImportError:  # on Windows only the time limit holds
        return
    for kind, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            hard = resource.getrlimit(kind)[1]
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):  # macOS refuses some of these limits
            continue


def _parsed(path: str, reader: str, schema: dict[str, Any]) -> Iterator[list[object]]:
    module, name = reader.split(".")
    try:
        read = cast(Parser, getattr(import_module(f"knn_logits.corpus.parsers.{module}"), name))
        fields = Schema(**{**schema, "keys": tuple(schema["keys"])})
        with Path(os.fsdecode(bytes.fromhex(path))).open("rb") as stream:
            for part in read(stream, fields):
                if isinstance(part, Text):
                    for first in range(0, len(part.text), _LONGEST_BLOCK):
                        text = part.text[first : first + _LONGEST_BLOCK]
                        rest = [part.place, part.fragment, part.done]
                        yield ["text", text, part.kind if not first else "", *rest]
                else:
                    yield [type(part).__name__.lower(), *vars(part).values()]
        yield ["end"]
    except CorpusError as error:
        yield ["wrong", str(error)]
    except UnreadableError as error:
        yield ["refused", str(error)]
    except ImportError:
        yield ["refused", "missing"]
    except MemoryError:
        yield ["refused", "memory"]
        raise SystemExit(1) from None  # the rest of the process may be broken
    except RecursionError:
        yield ["refused", "nesting"]
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        yield ["refused", f"damaged: {type(error).__name__} {reason}".rstrip()]
