"""Parses untrusted documents in a child process, which cannot hang, fill the memory or write files.

This module starts, watches and replaces the child process; `parsers` is what runs in it. A hostile
file can end the child process at most, and a new one reads the next file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from knn_logits.corpus.encoding import EXTRA
from knn_logits.corpus.kinds import Parsed
from knn_logits.corpus.parsers.blocks import Begin, Block, Left, Part, RefusedError
from knn_logits.corpus.rows import display_name

# The address space of the child in bytes. Python and its libraries take a tenth of it.
MEMORY = 2 << 30
# The seconds that the child may take for one answer and for a whole file. A page takes far less
# than one.
PATIENCE, LONGEST = 60.0, 900.0
# The text that a file may give: so many characters at least, and so many for each of its bytes.
_MOST_TEXT, _MOST_TEXT_A_BYTE = 64 << 20, 300
_LONGEST_ANSWER = 32 << 20
_WHAT = {
    "missing": f"its format needs more packages: {EXTRA}",
    "nesting": "nested too deeply to be read; save it anew",
}
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from knn_logits.corpus.parsers.serve import main; main()"
)


class Extractor:
    """Parses files in a child process, which starts with the first file.

    Args:
        memory: Bytes of address space that the child may have, if the system can limit it.
        patience: Seconds that the child may take from one page or heading to the next.
        longest: Seconds that the child may take for a file.
    """

    def __init__(
        self, *, memory: int = MEMORY, patience: float = PATIENCE, longest: float = LONGEST
    ) -> None:
        self._memory = memory
        self._patience, self._longest = patience, longest
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Extractor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def parts(self, path: Path, kind: Parsed, encoding: str | None) -> Iterator[Part]:
        """Yields the parts of a file in order.

        Args:
            path: A regular file.
            kind: How the file is read.
            encoding: The encoding that the user named; None recognises it.

        Raises:
            RefusedError: when the file cannot be read, or not to its end.
        """
        child = self._started()
        asked = {"path": os.fsencode(path.resolve()).hex(), "kind": kind, "encoding": encoding}
        most = max(_MOST_TEXT, _MOST_TEXT_A_BYTE * path.stat().st_size)
        assert child.stdin is not None
        finished = False
        try:
            with _Watch(child, self._patience, self._longest) as watch:
                with contextlib.suppress(OSError):  # the child died while it waited
                    child.stdin.write(json.dumps(asked).encode() + b"\n")
                    child.stdin.flush()
                while True:
                    answer = self._answer(child, watch)
                    watch.pause()  # the text is worked on here, and not in the child
                    if answer[0] == "end":
                        finished = True
                        return
                    if answer[0] == "refused":
                        finished = answer[1] != "memory"
                        raise RefusedError(self._reason(str(answer[1])))
                    part = _part(answer)
                    most -= len(part.text) if isinstance(part, Block) else 0
                    if most < 0:
                        raise RefusedError(
                            "it gives more text than a document of its size can have, as a zip "
                            "bomb does; split it if it is sound"
                        )
                    yield part
                    watch.go_on()
        finally:
            if not finished:
                self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            own = str(Path(__file__).parents[2])
            where = json.dumps([own, *(one for one in sys.path if one)])
            try:
                self._child = subprocess.Popen(
                    [sys.executable, "-I", "-B", "-c", _START, str(self._memory), where],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:
                raise RefusedError(
                    f"no process can be started to read it ({error}); free some memory"
                ) from None
        return self._child

    def _answer(self, child: subprocess.Popen[bytes], watch: _Watch) -> list[Any]:
        assert child.stdout is not None
        line = child.stdout.readline(_LONGEST_ANSWER)
        if watch.expired:
            raise RefusedError(
                f"reading it took longer than {watch.allowed:.0f} s, as with a damaged or hostile "
                "file; save it anew or split it"
            )
        try:
            answer = json.loads(line)
            if not isinstance(answer, list) or not answer:
                raise ValueError
        except ValueError:
            raise RefusedError("the library that reads it crashed; save it anew") from None
        return answer

    def _reason(self, said: str) -> str:
        if said == "memory":
            return (
                f"reading it takes more than {self._memory / (1 << 30):.3g} GiB, as with a damaged "
                "or hostile file; split it"
            )
        return _WHAT.get(said, display_name(said)[:300])

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        child.wait()


def _part(answer: list[Any]) -> Part:
    """Checks an answer of the child, since a hostile file may have taken the child over."""
    try:
        if answer[0] == "begin":
            title = None if answer[1] is None else display_name(str(answer[1]))[:300]
            return Begin(title, int(answer[2]))
        if answer[0] == "block":
            _, text, place, fragment, done = answer
            if isinstance(text, str):
                shown = display_name(str(place))[:100], display_name(str(fragment))[:100]
                return Block(text, *shown, min(1.0, max(0.0, float(done))))
        if answer[0] == "left":
            shown = display_name(str(answer[1]))[:100], display_name(str(answer[2]))[:300]
            return Left(*shown, bool(answer[3]))
    except (ValueError, TypeError, IndexError):
        pass
    raise RefusedError("the library that reads it crashed; save it anew")


class _Watch:
    """Kills a child that takes too long. It runs in another thread, so that no read hangs."""

    def __init__(self, child: subprocess.Popen[bytes], patience: float, longest: float) -> None:
        self.expired = False
        self.allowed = patience
        self._child = child
        self._patience, self._left = patience, longest
        self._changed = threading.Condition()
        self._ended = False
        self._since: float | None = time.monotonic()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def pause(self) -> None:
        """Stops the child's clock."""
        with self._changed:
            if self._since is not None:
                self._left -= time.monotonic() - self._since
            self._since = None

    def go_on(self) -> None:
        """Starts the child's clock for its next answer."""
        with self._changed:
            self._since = time.monotonic()
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._ended:
                if self._since is None:
                    self._changed.wait()
                    continue
                allowed = min(self._patience, self._left)
                remaining = self._since + allowed - time.monotonic()
                if remaining > 0:
                    self._changed.wait(remaining)
                    continue
                self.expired, self.allowed = True, allowed
                self._child.kill()
                return
