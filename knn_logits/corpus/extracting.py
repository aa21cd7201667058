"""Documents of strangers, parsed in a child process that cannot hang, fill the memory or write.

Knows how the child is started, watched and replaced. What it does with a file is in `parsers`.
A file costs the child at most, and a new one serves the next file.
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

# Bytes of address space, of which Python and its libraries take a tenth.
MEMORY = 2 << 30
# Seconds without an answer, and for a whole file. A page takes a fraction of one.
PATIENCE, LONGEST = 60.0, 900.0
# Characters of text that a file may give, whatever its size, and for each of its bytes.
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
    """Parses files in a child process, which is started when the first one comes.

    Args:
        memory: bytes of address space that the child may have, where the system can limit it.
        patience: seconds that it may take from one page or heading to the next.
        longest: seconds that it may take for a file.
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
        """The parts of a file, in its order.

        Args:
            path: a regular file.
            kind: how it is read.
            encoding: that the user named; None recognises it.

        Raises:
            RefusedError: when it is not read, or not to its end.
        """
        child = self._started()
        asked = {"path": os.fsencode(path.resolve()).hex(), "kind": kind, "encoding": encoding}
        most = max(_MOST_TEXT, _MOST_TEXT_A_BYTE * path.stat().st_size)
        assert child.stdin is not None
        finished = False
        try:
            with _Watch(child, self._patience, self._longest) as watch:
                with contextlib.suppress(OSError):  # it died while it waited, and answers nothing
                    child.stdin.write(json.dumps(asked).encode() + b"\n")
                    child.stdin.flush()
                while True:
                    answer = self._answer(child, watch)
                    watch.pause()  # while the text is worked on here
                    if answer[0] == "end":
                        finished = True
                        return
                    if answer[0] == "refused":
                        finished = answer[1] != "memory"
                        raise RefusedError(self._reason(str(answer[1])))
                    part = _part(answer)
                    most -= len(part.text) if isinstance(part, Block) else 0
                    if most < 0:
                        raise RefusedError("it gives more text than any document, as a bomb does")
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
                raise RefusedError(f"no process can be started to read it ({error})") from None
        return self._child

    def _answer(self, child: subprocess.Popen[bytes], watch: _Watch) -> list[Any]:
        assert child.stdout is not None
        line = child.stdout.readline(_LONGEST_ANSWER)
        if watch.expired:
            raise RefusedError(
                f"it took longer than {watch.allowed:.0f} s, as a damaged or hostile file does"
            )
        try:
            answer = json.loads(line)
            if not isinstance(answer, list) or not answer:
                raise ValueError
        except ValueError:
            raise RefusedError("the library that reads it broke down; save it anew") from None
        return answer

    def _reason(self, said: str) -> str:
        if said == "memory":
            return (
                f"it takes more than {self._memory / (1 << 30):.3g} GiB to read, as a damaged or "
                "hostile file does; split it"
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
    """An answer of the child, which a hostile file may have taken over."""
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
    raise RefusedError("the library that reads it broke down; save it anew")


class _Watch:
    """Kills a child that takes too long, from another thread, so that no read waits for ever."""

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
        """The child's time stands still."""
        with self._changed:
            if self._since is not None:
                self._left -= time.monotonic() - self._since
            self._since = None

    def go_on(self) -> None:
        """The child works on its next answer."""
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
