"""Kills every job that writes a datastore at random moments, and lets it go on.

    python tests/durability/kills.py --number 500

Each run of a job is a child process that is killed with SIGKILL. After each kill a reader must see
the datastore as it was before the job or as it is after it. In the end every file must be, byte for
byte, what the job writes when nothing disturbs it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

# The script runs without pytest, which puts the tests' folder on the path.
sys.path.insert(0, str(Path(__file__).parents[1]))

from forked import Fork

KINDS = ["build", "add", "sync", "remove", "compact", "index", "cluster", "tune", "gate"]
KINDS += ["suffixes", "import_", "pull"]
_HUB = "import sys, loopback; print(loopback.Hub().url, flush=True); sys.stdin.read()"


@contextmanager
def a_hub():
    """A Hub of its own process, since a process with threads is not to be forked.

    The client reads where it is when it is imported, so before `stores` is.
    """
    tests = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _HUB],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tests / "hub",
    )
    url = process.stdout.readline().strip()
    os.environ |= {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()


def ends_well(work):
    """Whether something ends without an error in a process of its own."""
    with Fork(work) as child:
        child.ended()
    return child.returncode == 0


def ends_within(child, seconds):
    until = time.monotonic() + seconds
    while child.runs():
        if time.monotonic() >= until:
            return False
        time.sleep(0.0005)
    return True


def prepared(jobs, base, kind):
    """Folders as they are before a job and after it, and how long it takes."""
    import stores

    before, after = base / f"{kind}-before", base / f"{kind}-after"
    jobs.prepare(kind, before)
    if before.exists():
        shutil.copytree(before, after)
    started = time.monotonic()
    assert ends_well(lambda: jobs.run(kind, after)), f"an undisturbed {kind} failed"
    seconds = time.monotonic() - started
    seen = tuple(stores.visible(jobs.place(kind, one)) for one in (before, after))
    return before, seen, jobs.state(kind, after), seconds


def one(jobs, kind, reference, folder, chance, counts):
    """Runs a job, killed until it is done; what is wrong in the end, or None."""
    import stores

    before, seen, expected, seconds = reference
    there = jobs.place(kind, folder)
    if before.exists():
        shutil.copytree(before, folder)
    # Several kills in a row at times, before the job may go on to its end.
    for turn in range(chance.choice((1, 1, 1, 2, 3, 5)) + 1):
        last = turn and chance.random() < 0.5
        # At its end a child that still runs is killed.
        with Fork(lambda: jobs.run(kind, folder)) as child:
            ended = ends_within(child, 300 if last else chance.uniform(0, seconds))
            status = child.returncode
        if ended:
            if status:
                return "going on failed"
            counts["resumed" if turn else "ended before a kill"] += 1
            break
        counts["kills"] += 1
        counts[f"kills of {kind}"] += 1
        try:
            now = stores.visible(there)
        except Exception as error:
            return f"a reader fails: {error!r}"
        if now not in seen:
            return "a reader sees neither the old state nor the new one"
        # Files that are left are deleted by the next job. A second build would be refused.
        if now == seen[1]:
            counts["killed after the end"] += 1
            return None
    else:
        if not ends_well(lambda: jobs.run(kind, folder)):
            return "going on failed"
        counts["resumed"] += 1
    found = jobs.state(kind, folder)
    wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    return f"other bytes in {len(wrong)} files, {', '.join(wrong[:4])}" if wrong else None


def run(number, seed, kinds, say=print):
    """Kills jobs until there were `number` kills, and each job had its turn.

    Returns:
        The counts, and what went wrong.
    """
    import stores
    from loopback import PRIVATE_TOKEN

    stores.quiet()
    chance, counts, wrong = random.Random(seed), Counter(), []
    # A process that is killed loses nothing that it wrote, so the files need no disk.
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ) as name:
        base = Path(name)
        os.environ["HF_HOME"] = f"{base}/home"
        jobs = stores.EveryJob(base, documents=12, index="IVF4,SQ8")
        if "pull" in kinds:
            jobs.publish(PRIVATE_TOKEN)
        # Also loads and warms everything up that the children then share.
        references = {kind: prepared(jobs, base, kind) for kind in kinds}
        turn = 0
        while counts["kills"] < number or turn < len(kinds):
            kind = kinds[turn % len(kinds)]
            folder = base / f"{turn}-{kind}"
            problem = one(jobs, kind, references[kind], folder, chance, counts)
            counts[f"jobs: {kind}"] += 1
            if problem:
                wrong.append(f"{folder.name} (seed {seed}): {problem}")
                say(wrong[-1], flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            turn += 1
            if turn % 25 == 0:
                say(f"{counts['kills']} kills", flush=True)
    return counts, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with a_hub():
        counts, wrong = run(arguments.number, arguments.seed, arguments.kinds)
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"differences: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
