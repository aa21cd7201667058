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
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from knn_logits.corpus.parsers import PARSERS, Begin, Fields, Left, Parser, Part, Text, advice_for
from knn_logits.corpus.rows import LONGEST_ROW, UnreadableError, display_name, fields_of, first_line
from knn_logits.corpus.texts import EXTRA, lines_of, opened, recognised
from knn_logits.errors import CorpusError
from knn_logits.store.blocks import KINDS

# The address space of the child in bytes. Python and its libraries take a tenth of it.
MEMORY = 2 << 30
# The seconds that the child may take for one answer; and for all documents, as many and these for
# each of their bytes.
PATIENCE_SECONDS, LONGEST_SECONDS, SECONDS_PER_BYTE = 60.0, 900.0, 60.0 / (1 << 20)
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from knn_logits.corpus.sandbox import serve; serve()"
)
# The most characters of a block, since an answer is read as a whole.
_LONGEST_BLOCK = 1 << 20
_LONGEST_LINE = LONGEST_ROW + (1 << 20)
_LINES_AHEAD = 8
# How the answers to a request end, unless the child has to be replaced.
_LAST_ANSWERS = ["end"], ["wrong"], ["refused"]
_BEAT_SECONDS = 0.1
# Libraries reserve memory for every processor of a machine, which the limit would count.
_SMALL_PROCESS = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
_SMALL_PROCESS |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Sandbox(contextlib.AbstractContextManager["Sandbox"]):
    """Parses files in a child process, which starts with the first file."""

    def __init__(
        self,
        *,
        memory: int = MEMORY,  # bytes of address space, if the system can limit it
        patience: float = PATIENCE_SECONDS,  # seconds from one page, heading or row to the next
        longest: float = LONGEST_SECONDS,  # seconds for all documents, if they are small
        beat: Callable[[], None] = lambda: None,  # ten times a second; an exception ends the work
        program: str = PROGRAM,  # the Python code that the child runs
    ) -> None:
        self._memory, self._patience = memory, patience
        self._left = longest
        self._beat, self._program = beat, program
        # None before the first file and after the end
        self.child: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        self._lines: queue.Queue[bytes] = queue.Queue(_LINES_AHEAD)

    def __exit__(self, *_: object) -> None:
        self.close()

    def parts(self, path: Path, parser: str, keys: tuple[str, ...]) -> Iterator[Part]:
        """Yields the parts of a regular file in order, as a parser of the registry reads them."""
        if self._left <= 0:
            raise UnreadableError(
                "the files before it took all the time that files of their size may take, as with "
                "malicious ones; read it alone"
            )
        child = self._started()
        request = {"path": os.fsencode(path.resolve()).hex(), "parser": parser, "keys": keys}
        self._left += SECONDS_PER_BYTE * path.stat().st_size
        finished = False
        try:
            assert child.stdin is not None
            with contextlib.suppress(OSError):  # the child died while it waited
                child.stdin.write(json.dumps(request).encode() + b"\n")
                child.stdin.flush()
            while not finished:
                answer = self._next_answer()
                finished = isinstance(answer, list) and answer[:1] in _LAST_ANSWERS
                if answer != ["end"]:
                    yield _checked(answer, keys)
        finally:
            if not finished:  # it crashed, lacks memory, or has half an answer left
                self.close()

    def close(self) -> None:
        child, self.child = self.child, None
        if child is None or self._pump is None:
            return
        child.kill()
        while self._pump.is_alive():  # it may wait to hand over a line
            with contextlib.suppress(queue.Empty):
                self._lines.get(timeout=0.01)
        with contextlib.suppress(OSError), child:
            pass  # `Popen` closes its pipes, and waits for its end

    def _started(self) -> subprocess.Popen[bytes]:
        if self.child is None or self.child.poll() is not None:
            self.close()
            package = str(Path(__file__).parents[2])
            paths = json.dumps([package, *(path for path in sys.path if path)])
            command = [sys.executable, "-I", "-B", "-c", self._program, str(self._memory), paths]
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_SMALL_PROCESS},
            )
            self._lines = queue.Queue(_LINES_AHEAD)
            arguments = (self.child.stdout, self._lines)
            self._pump = threading.Thread(target=_pump, args=arguments, daemon=True)
            self._pump.start()
        return self.child

    def _next_answer(self) -> Any:
        """Waits for the next line of the child; None for one that is no JSON."""
        start, seconds = time.monotonic(), min(self._patience, self._left)
        line, waited = None, 0.0
        while line is None and waited < seconds:
            self._beat()
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=_BEAT_SECONDS)
            waited = time.monotonic() - start
        self._left -= waited
        if line is None:
            raise UnreadableError(
                f"reading it took longer than {seconds:.0f} s, as with a damaged or malicious "
                "file; save it again or split it"
            )
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(line)
        return None


def _checked(answer: Any, keys: tuple[str, ...]) -> Part:
    """Checks an answer of the child, which may be a reason to stop."""
    try:
        match answer:
            case ["begin", None | str() as title]:
                return Begin(None if title is None else _line(title, 300))
            case ["text", str(text), str(kind), str(place), str(link)] if kind in KINDS:
                return Text(text, kind, _line(place, 100), _line(link, 100))
            case ["fields", dict(fields), int(number), done]:
                return Fields(fields_of(fields, keys), number, min(1.0, max(0.0, float(done))))
            case ["left", str(where), str(reason), bool(damaged)]:
                return Left(_line(where, 100), _line(reason, 300), damaged)
            case ["wrong", str(reason)]:
                raise CorpusError(_line(reason, 1000))
            case ["refused" | "full", str(reason)]:
                raise UnreadableError(_line(reason, 300))
    except (ValueError, TypeError, OverflowError):
        pass
    raise UnreadableError("the library that reads it crashed; save it again")


def _line(text: str, most: int) -> str:
    return display_name(text[:most])


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
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    memory = int(sys.argv[1])
    confine(memory)
    for line in sys.stdin:
        for answer in _answers(memory, **json.loads(line)):
            data = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
            output.write(data + b"\n")
            output.flush()


def confine(memory: int) -> None:
    """Limits this process's memory and forbids it to write files, if the system can do that."""
    try:
        import resource
    except ImportError:  # on Windows only the time limit holds
        return
    limits = {resource.RLIMIT_AS: memory, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    for kind, value in limits.items():
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some of these limits
            hard = resource.getrlimit(kind)[1]
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (most, most))


def _answers(memory: int, path: str, parser: str, keys: list[str]) -> Iterator[list[object]]:
    try:
        for part in parsed(Path(os.fsdecode(bytes.fromhex(path))), parser, tuple(keys)):
            if isinstance(part, Text):
                for first in range(0, len(part.text), _LONGEST_BLOCK):
                    text = part.text[first : first + _LONGEST_BLOCK]
                    kind = "" if first else part.kind
                    yield ["text", text, kind, part.place, part.fragment]
            else:
                yield [type(part).__name__.lower(), *vars(part).values()]
        yield ["end"]
    except CorpusError as error:
        yield ["wrong", str(error)]
    except UnreadableError as error:
        yield ["refused", str(error)]
    except ImportError:
        yield ["refused", f"its format needs more packages: {EXTRA}"]
    except MemoryError:
        reason = "as with a damaged or malicious file; split it"
        yield ["full", f"reading it takes more than {memory / (1 << 30):.3g} GiB, {reason}"]
    except RecursionError:
        yield ["refused", "nested too deeply to be read; save it again"]
    except Exception as error:
        yield ["refused", f"damaged ({type(error).__name__}: {first_line(error)}); save it again"]


def parsed(path: Path, parser: str, keys: tuple[str, ...]) -> Iterator[Part]:
    """Yields the parts of a file in order, as a parser of the registry reads them."""
    module, name = parser.split(".")
    read = cast(Parser, getattr(import_module(f"knn_logits.corpus.parsers.{module}"), name))
    holds = PARSERS[parser].holds
    try:
        with opened(path) as stream:
            if holds == "text":
                yield from _text(stream, path.name, read)
            else:
                yield from read(stream, keys) if holds == "rows" else read(stream)
    except UnicodeError as error:
        raise UnreadableError(f"damaged text ({first_line(error)}); save it as UTF-8") from None


def _text(stream: Any, name: str, read: Parser) -> Iterator[Part]:
    advice = advice_for(name)
    if advice is not None:
        raise UnreadableError(f"not read: {advice}")
    encoding, guessed = recognised(stream)
    if guessed:
        yield Left("", f"read as {encoding}, which is a guess; save it as UTF-8", False)
    yield from read(lines_of(stream, encoding))
