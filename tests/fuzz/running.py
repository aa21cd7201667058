"""Gives a parser inputs in a child process of limited memory and time, and counts how they end."""

import hashlib
import json
import os
import resource
import signal
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import above  # noqa: F401 (puts the tests' folders on the path)
import children
import mutation

from knn_logits.errors import KNNLogitsError

CRASHERS = Path(__file__).parent / "crashers"
MEMORY = 2 << 30
# Of the child's own time, and by the clock, since other processes have the machine too.
SECONDS, WALL = 10, 120
GOOD = ("refused", "accepted", "skipped")


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes:
        name: Its name.
        seeds: Inputs that it reads, as bytes.
        open: Called in the child; returns a function that reads an input and returns how that
            ended. It may raise errors of the package, of one line.
        form: How inputs are changed beside their bytes.
        refused: Further errors that refuse an input.
        may_crash: Whether the parser is known to end its process, or to hang.
    """

    name: str
    seeds: list
    open: object
    form: str = "raw"
    refused: tuple = ()
    may_crash: bool = False


def outcome(read, refused, data):
    """How an input ended, and a text about it where that is wrong."""
    try:
        return str(read(data)), ""
    except (KNNLogitsError, *refused) as error:
        text = str(error)
        lines = len(text.splitlines())
        return ("refused", "") if lines == 1 else ("lines", f"{lines} lines: {text[:300]!r}")
    except MemoryError:
        return "memory", traceback.format_exc()[-1500:]
    except Exception:
        return "exception", traceback.format_exc()[-1500:]


def _child(target, inputs, pipe):
    """Reads inputs, and writes a line after each."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = children.virtual_size() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for sign in (signal.SIGVTALRM, signal.SIGALRM):
        signal.signal(sign, signal.SIG_DFL)
    quiet = os.open(os.devnull, os.O_WRONLY)
    for handle in (1, 2):  # libraries print their warnings
        os.dup2(quiet, handle)
    read = target.open()
    for data in inputs:
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        signal.alarm(WALL)
        result = outcome(read, target.refused, data)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        os.write(pipe, json.dumps(result).encode() + b"\n")


def outcomes(target, inputs):
    """Yields how each input ended, and a text about it. A child that dies is replaced."""
    while inputs:
        reader, writer = os.pipe()
        number = children.fork(_child, target, inputs, writer)
        os.close(writer)
        done = 0
        with os.fdopen(reader) as pipe:
            for line in pipe:
                done += 1
                yield tuple(json.loads(line))
        status = os.waitpid(number, 0)[1]
        if done < len(inputs):
            ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else status
            yield ("hang" if ended in ("SIGVTALRM", "SIGALRM") else "crash"), str(ended)
        inputs = inputs[done + 1 :]


def fuzz(target, number, seed, first=0):
    """Gives a parser the inputs that once broke it, and changed ones.

    Returns:
        The counts of how they ended, and a line for each that ended wrongly, which is kept.
    """
    inputs = [path.read_bytes() for path in sorted((CRASHERS / target.name).glob("*"))]
    for place in range(first, first + number):
        inputs.append(mutation.changed(target.seeds, target.form, f"{seed} {target.name} {place}"))
    counts, wrong = Counter(), []
    for data, (kind, text) in zip(inputs, outcomes(target, inputs), strict=True):
        counts[kind] += 1
        if kind in GOOD or (kind in ("crash", "hang") and target.may_crash):
            continue
        path = CRASHERS / target.name / hashlib.sha256(data).hexdigest()[:12]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        wrong.append(f"{path}: {kind} {text[-400:]}")
    return counts, wrong
