"""Runs something in a forked child, so that a crash, a hang or a blow-up is its alone."""

import os
import resource
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path

# The scripts run without pytest, which puts the tests' folder on the path.
sys.path.insert(0, str(Path(__file__).parents[1]))

import knn_logits
from knn_logits.errors import KNNLogitsError

# By the clock, also where much else runs.
SECONDS = 300
# Where modules are loaded from.
CODE = (sys.prefix, sys.base_prefix, str(Path(knn_logits.__file__).parent))
CODE += (str(Path(__file__).parents[1]), "/usr/share/zoneinfo/")
_OUTCOMES = ["refused", "accepted", "exception", "outside"]


def fork(work, *arguments):
    """Starts `work(*arguments)` in a process of its own; returns its number."""
    number = os.fork()
    if number:
        return number
    status = 1
    try:
        work(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def ended(number):
    """Waits for a process; returns whether it ended without an error."""
    return os.waitpid(number, 0)[1] == 0


def ends_well(work, *arguments):
    """Whether `work(*arguments)` ends without an error in a process of its own."""
    return ended(fork(work, *arguments))


def virtual_size():
    """Bytes of address space that this process has taken."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def files_in_use():
    """Files that this process has open or mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = {part[5] for line in lines if len(part := line.split(maxsplit=5)) == 6}
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(str(handle.readlink()))
    return found


def outside(folder, before):
    """Files that are in use now, were not before, and lie in no datastore."""
    new = files_in_use() - before
    return {one for one in new if one.startswith("/") and not allowed(one, folder)}


def allowed(name, folder):
    inside = str(folder.resolve())
    return name.startswith((inside, *CODE, "/proc/", "/dev/", "/sys/"))


def watch(folder, found):
    """Notes each file that Python opens outside the folder."""

    def hook(event, arguments):
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            name = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100
            if not allowed(name, folder) and "/knn-cache/" not in name:
                found.append(name)

    sys.addaudithook(hook)


def outcome(work, folder, *, memory=None):
    """Runs `work(folder)` in a child.

    Args:
        work: Returns one of the names of outcomes, or raises.
        folder: The datastore.
        memory: Bytes that the child may take beyond what it starts with; also, then, what it
            opens is watched.

    Returns:
        The outcome, and a line about it where it is bad.
    """
    read, write = os.pipe()
    number = os.fork()
    if not number:
        os.close(read)
        result, text = _in_child(work, folder, memory)
        os.write(write, text.encode(errors="replace")[-4000:])
        os._exit(_OUTCOMES.index(result))
    os.close(write)
    with os.fdopen(read, errors="replace") as pipe:
        text = pipe.read()
    status = os.waitpid(number, 0)[1]
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return ("hang" if name in ("SIGALRM", "SIGXCPU") else "crash"), name
    code = os.WEXITSTATUS(status)
    return (_OUTCOMES[code], text) if code < len(_OUTCOMES) else ("crash", f"exit {code}")


def _in_child(work, folder, memory):
    found, before = [], set()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    if memory is not None:
        before = files_in_use()
        watch(folder, found)
        limit = virtual_size() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    error = None
    try:
        result, text = work(folder), ""
    except KNNLogitsError as problem:
        text = str(problem)
        result = "refused" if "\n" not in text else "exception"
    except BaseException as problem:
        result, error = "exception", problem
    if memory is not None:
        found = sorted({*found, *outside(folder, before)})
    if error is not None:
        text = "".join(traceback.format_exception(error))
    elif found:
        result, text = "outside", ", ".join(found)
    return result, text
