"""The child process that parses untrusted files one after another, and may crash.

It reads one JSON object a line, `{"path", "kind", "encoding"}`, and answers with lines of JSON:
lists that begin with "begin", "block" or "left" for the parts of the file, and one that begins with
"end" or "refused". Its memory is limited, and it can write no file.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import cast

from knn_logits.corpus.parsers.blocks import Begin, Block, Parser, RefusedError

# For each kind, the module of this package and the function that reads it.
_READ_BY = {
    "pdf": ("pdf", "read"),
    "html": ("markup", "read"),
    "docx": ("office", "read_docx"),
    "pptx": ("office", "read_pptx"),
    "rtf": ("office", "read_rtf"),
    "epub": ("books", "read"),
    "notebook": ("notebooks", "read"),
    "mail": ("mail", "read"),
    "mailbox": ("mail", "read_mailbox"),
}
# The most characters of a block, since an answer is read as a whole.
_LONGEST = 1 << 20


def main() -> None:
    """Answers until the pipe is closed. The argument is the number of bytes of memory allowed."""
    # The output of a library must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    limit(int(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        path = Path(os.fsdecode(bytes.fromhex(asked["path"])))
        for answer in _answers(path, asked["kind"], asked["encoding"]):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def limit(memory: int) -> None:
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


def _answers(path: Path, kind: str, encoding: str | None) -> Iterator[list[object]]:
    module, name = _READ_BY[kind]
    try:
        read = cast(Parser, getattr(import_module(f"knn_logits.corpus.parsers.{module}"), name))
        for part in read(path, encoding):
            if isinstance(part, Begin):
                yield ["begin", part.title, part.number]
            elif isinstance(part, Block):
                for first in range(0, len(part.text), _LONGEST):
                    text = part.text[first : first + _LONGEST]
                    yield ["block", text, part.place, part.fragment, part.done]
            else:
                yield ["left", part.where, part.reason, part.damaged]
    except RefusedError as error:
        yield ["refused", str(error)]
    except ImportError:
        yield ["refused", "missing"]
    except (MemoryError, RecursionError) as error:
        what = "memory" if isinstance(error, MemoryError) else "nesting"
        yield ["refused", what]
        if what == "memory":
            raise SystemExit(1) from None  # the rest of the process may be broken
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        yield ["refused", f"damaged: {type(error).__name__} {reason}".rstrip()]
    else:
        yield ["end"]


if __name__ == "__main__":
    main()
