"""Kills builds, additions and compactions at random moments, and lets them go on.

    python tests/durability/kills.py --number 300

Each run of a job is a child process that is killed with SIGKILL. After each kill a reader must see
the datastore as it was before the job or as it is after it. In the end every file must be, byte for
byte, what the job writes when nothing disturbs it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import stores

# One job in so many is of each kind; builds are what takes longest.
KINDS = ("build", "build", "add", "compact")


def child(jobs, kind, folder):
    """Starts a job in a process of its own."""
    number = os.fork()
    if number:
        return number
    status = 1
    try:
        jobs.run(kind, folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def ends(number, seconds):
    """Waits for a process for some seconds; its exit status, or None."""
    until = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(number, os.WNOHANG)
        if done:
            return status
        if time.monotonic() >= until:
            return None
        time.sleep(0.0005)


def prepared(jobs, base, kind):
    """Folders as they are before a job and after it, and how long it takes."""
    before, after = base / f"{kind}-before", base / f"{kind}-after"
    jobs.prepare(kind, before)
    # The first run warms everything up.
    for _ in range(2):
        shutil.rmtree(after, ignore_errors=True)
        if before.exists():
            shutil.copytree(before, after)
        started = time.monotonic()
        number = child(jobs, kind, after)
        assert os.waitpid(number, 0)[1] == 0, f"an undisturbed {kind} failed"
        seconds = time.monotonic() - started
    seen = (stores.visible(before), stores.visible(after))
    return before, seen, stores.state(after), seconds


def one(jobs, kind, reference, folder, chance, counts):
    """Runs a job, killed until it is done; what is wrong in the end, or None."""
    before, seen, expected, seconds = reference
    if before.exists():
        shutil.copytree(before, folder)
    # Several kills in a row at times, before the job may go on to its end.
    for turn in range(chance.choice((1, 1, 1, 2, 3, 5)) + 1):
        last = turn and chance.random() < 0.5
        number = child(jobs, kind, folder)
        status = os.waitpid(number, 0)[1] if last else ends(number, chance.uniform(0, seconds))
        if status is not None:
            if status:
                return "going on failed"
            counts["resumed" if turn else "ended before a kill"] += 1
            break
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        counts["kills"] += 1
        counts[f"kills of {kind}"] += 1
        try:
            now = stores.visible(folder)
        except Exception as error:
            return f"a reader fails: {error!r}"
        if now not in seen:
            return "a reader sees neither the old state nor the new one"
        if now == seen[1] and stores.is_clean(folder):
            counts["killed after the end"] += 1
            break
    else:
        if os.waitpid(child(jobs, kind, folder), 0)[1]:
            return "going on failed"
        counts["resumed"] += 1
    found = stores.state(folder)
    wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    return f"other bytes in {len(wrong)} files, {', '.join(wrong[:4])}" if wrong else None


def run(number, seed, say=print):
    """Kills jobs until there were `number` kills; returns the counts and what went wrong."""
    stores.quiet()
    chance, counts, wrong = random.Random(seed), Counter(), []
    jobs = stores.Jobs()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        # Also loads and warms everything up that the children then share.
        references = {kind: prepared(jobs, base, kind) for kind in dict.fromkeys(KINDS)}
        turn = 0
        while counts["kills"] < number:
            kind = KINDS[turn % len(KINDS)]
            folder = base / f"{turn}-{kind}"
            problem = one(jobs, kind, references[kind], folder, chance, counts)
            counts[f"jobs: {kind}"] += 1
            if problem:
                wrong.append(f"{folder.name} (seed {seed}): {problem}")
                say(wrong[-1])
            shutil.rmtree(folder, ignore_errors=True)
            turn += 1
            if turn % 25 == 0:
                say(f"{counts['kills']} kills")
    return counts, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts, wrong = run(arguments.number, arguments.seed)
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"differences: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
