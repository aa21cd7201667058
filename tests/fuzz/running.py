"""Gives a parser changed inputs in a child process of limited memory and time, and counts.

A child takes inputs one after another, and says of each how it ended. Where it dies, hangs or
raises what is no error of the package, the input is kept, made smaller.
"""

import hashlib
import json
import os
import resource
import select
import signal
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import above  # noqa: F401 (puts the tests' folders on the path)
import children
import mutation

from knn_logits.errors import KNNLogitsError

CRASHERS = Path(__file__).parent / "crashers"
MEMORY = 2 << 30
# Of the child's own time, and by the clock, since other processes have the machine too.
SECONDS, WALL = 10, 120
# A child is replaced after so many inputs, so that nothing adds up.
_INPUTS = 2000
_TRIES, _TRYING = 60, 100


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


@dataclass
class Result:
    """How the inputs of a parser ended, and what went wrong.

    `slowest` is by the clock, `busiest` seconds of the processor, which other processes do not
    lengthen.
    """

    inputs: int = 0
    counts: Counter = field(default_factory=Counter)
    wrong: list = field(default_factory=list)
    megabytes: int = 0
    slowest: float = 0.0
    busiest: float = 0.0

    def counted(self, target, places, data_of):
        """Reads inputs and counts how they ended; yields those that ended wrongly."""
        for place, kind, text, times, megabytes in read_all(target, places, data_of):
            self.inputs += 1
            self.counts[kind] += 1
            self.megabytes = max(self.megabytes, megabytes)
            self.slowest = max(self.slowest, times[0])
            self.busiest = max(self.busiest, times[1])
            if kind not in GOOD and not (kind in ("crash", "hang") and target.may_crash):
                yield place, kind, text

    def add(self, other):
        """Counts those of another result too."""
        self.inputs += other.inputs
        self.counts += other.counts
        self.wrong += other.wrong
        self.megabytes = max(self.megabytes, other.megabytes)
        self.slowest = max(self.slowest, other.slowest)
        self.busiest = max(self.busiest, other.busiest)


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


GOOD = ("refused", "accepted", "skipped")


def _child(target, places, data_of, pipe):
    """Reads inputs, and writes a line before and after each."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = children.virtual_size() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    quiet = os.open(os.devnull, os.O_WRONLY)
    for handle in (1, 2):  # libraries print their warnings
        os.dup2(quiet, handle)
    read = target.open()

    def say(*line):
        os.write(pipe, json.dumps(line).encode() + b"\n")

    for place in places:
        data = data_of(place)
        say("begin", place)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        since = time.monotonic(), time.process_time()
        result, text = outcome(read, target.refused, data)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        own, theirs = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        most = max(own.ru_maxrss, theirs.ru_maxrss) >> 10
        times = time.monotonic() - since[0], time.process_time() - since[1]
        say("end", place, result, text[-1500:], times, most)


def _lines(pipe):
    """Yields the lines of a pipe until its end. None means that none came for long."""
    rest = b""
    while select.select([pipe], [], [], WALL)[0]:
        data = os.read(pipe, 1 << 16)
        if not data:
            return
        *whole, rest = (rest + data).split(b"\n")
        yield from map(json.loads, whole)
    yield None


def read_all(target, places, data_of):
    """Yields the place, the result, a text, the times and megabytes of each of some inputs."""
    places = list(places)
    while places:
        reader, writer = os.pipe()
        number = children.fork(_child, target, places, data_of, writer)
        os.close(writer)
        now, done = None, 0
        for line in _lines(reader):
            if line is None:
                os.kill(number, signal.SIGKILL)
                break
            kind, *rest = line
            now = rest[0] if kind == "begin" else None
            if kind == "end":
                done += 1
                yield tuple(rest)
        os.close(reader)
        status = os.waitpid(number, 0)[1]
        if now is None and done < len(places):
            raise AssertionError(f"{target.name}: the child ended by itself ({status})")
        if now is not None:
            ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else status
            result = "hang" if ended in ("SIGVTALRM", "SIGKILL") else "crash"
            yield now, result, str(ended), (float(SECONDS), float(SECONDS)), 0
            done += 1
        places = places[done:]


def fuzz(target, number, seed, say=print, *, first=0):
    """Gives a parser some inputs; what it does wrong is kept in `crashers`, made smaller."""
    result = Result()
    seen = set()

    def data_of(place):
        return mutation.changed(target.seeds, target.form, f"{seed} {target.name} {place}")

    for start in range(first, first + number, _INPUTS):
        places = range(start, min(start + _INPUTS, first + number))
        for place, kind, text in result.counted(target, places, data_of):
            cause = (kind, text.strip().splitlines()[-1][:60] if text.strip() else "")
            result.wrong.append(f"{target.name} (seed {seed}, {place}): {kind} {text[-400:]}")
            if cause in seen:
                continue
            seen.add(cause)
            say(result.wrong[-1], flush=True)
            keep(target, smaller(target, data_of(place), kind))
    return result


def again(target, say=print):
    """Gives a parser the inputs that once broke it."""
    result, paths = Result(), sorted((CRASHERS / target.name).glob("*"))
    for place, kind, text in result.counted(
        target, range(len(paths)), lambda place: paths[place].read_bytes()
    ):
        result.wrong.append(f"{target.name} ({paths[place].name}): {kind} {text[-400:]}")
        say(result.wrong[-1], flush=True)
    return result


def smaller(target, data, kind):
    """Leaves out parts of an input as long as it ends in the same way."""
    size, tries, end = len(data) // 2, 0, time.monotonic() + _TRYING
    while size:
        place = 0
        while place < len(data) and tries < _TRIES and time.monotonic() < end:
            shorter = data[:place] + data[place + size :]
            tries += 1
            ((_, result, *_),) = read_all(target, [0], lambda _, data=shorter: data)
            if result == kind:
                data = shorter
            else:
                place += size
        size //= 2
    return data


def keep(target, data):
    """Writes an input into the folder of those that tests read."""
    folder = CRASHERS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
