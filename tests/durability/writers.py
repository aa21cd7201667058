"""Lets two processes write one datastore at the same time: what each does must be there at the end.

    python tests/durability/writers.py --number 200

Each round proves that the two overlap. Either the second finds the lock held while the first writes
and comes again, or all that it read before the lock is old, since the first has finished meanwhile.
In the end every file must be, byte for byte, what the two jobs write one after the other.
"""

from __future__ import annotations

import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import cases
import children
import stores

from knn_logits.building.adding import add_documents
from knn_logits.building.indexing import build_suffixes
from knn_logits.building.removing import remove_documents
from knn_logits.corpus.documents import Document
from knn_logits.errors import BusyError, KNNLogitsError
from knn_logits.store import files

PAIRS = [("add", "more"), ("add", "remove"), ("sync", "add"), ("compact", "add")]
PAIRS += [("index", "add"), ("tune", "add"), ("compact", "remove"), ("cluster", "remove")]
# All orders and schedules of the pairs.
TURNS = [
    (pair[::order], schedule)
    for schedule in ("refused", "stale")
    for order in (1, -1)
    for pair in PAIRS
]
SECONDS = 120


class Writers(stores.Jobs):
    """The jobs, all on a datastore of which a document is removed."""

    def prepare(self, kind, folder):
        self._copy_of_first(folder)
        build_suffixes(folder)
        remove_documents(folder, ["0-0"])

    def more(self, folder):
        """Adds other documents than `add`."""
        documents = [Document(f"Again: {text}", f"more-{text[:9]}") for text in stores.TEXTS[:3]]
        return add_documents(stores.model(), stores.tokenizer(), folder, documents, **self._small)

    def remove(self, folder):
        return remove_documents(folder, ["0-1", "0-3"])


class Meeting:
    """What two processes know of each other: who holds the lock, was refused, is done."""

    def __init__(self, schedule):
        context = multiprocessing.get_context("fork")
        self.schedule = schedule
        self.held, self.met, self.done = (context.Event() for _ in range(3))
        self.refusals, self.again = context.Value("i", 0), context.Value("i", 0)


def wait(event):
    assert event.wait(SECONDS), "the other process never came"


def locks(meeting, is_first):
    """The lock of a process, which at its first use meets the other process."""

    class Lock(files.FileLock):
        uses = 0

        def acquire(self, *arguments, **settings):
            Lock.uses += 1
            if Lock.uses == 1:
                self._before()
            try:
                result = super().acquire(*arguments, **settings)
            except files.Timeout:
                meeting.refusals.value += 1
                meeting.met.set()
                raise
            if Lock.uses == 1 and is_first and meeting.schedule == "refused":
                meeting.held.set()
                wait(meeting.met)
            return result

        def _before(self):
            if meeting.schedule == "refused" and not is_first:
                wait(meeting.held)
            elif meeting.schedule == "stale" and is_first:
                wait(meeting.met)
            elif meeting.schedule == "stale":
                meeting.met.set()
                wait(meeting.done)

    return Lock


def write(jobs, kind, folder, meeting, is_first):
    """Does a job as a person does: where it is refused, again."""
    files.FileLock = locks(meeting, is_first)
    end = time.monotonic() + SECONDS
    while True:
        try:
            jobs.run(kind, folder)
            break
        except BusyError:
            assert time.monotonic() < end, "the lock is never free"
            time.sleep(0.002)
        except KNNLogitsError:
            # What it was given is old, such as a datastore that was opened before.
            meeting.again.value += 1
            assert meeting.again.value < 3, "it is refused each time"
    if is_first:
        meeting.done.set()


def both(jobs, kinds, folder, schedule):
    """Runs two jobs at once; returns their meeting, and whether both ended well."""
    meeting = Meeting(schedule)
    started = [
        children.fork(write, jobs, kind, folder, meeting, place == 0)
        for place, kind in enumerate(kinds)
    ]
    well = [children.ended(number) for number in started]
    return meeting, all(well)


def run(number, seed, say=print):
    """Lets pairs of jobs meet; returns the counts, and what went wrong."""
    stores.quiet()
    chance, counts, wrong, expected = random.Random(seed), Counter(), [], {}
    with tempfile.TemporaryDirectory(dir=cases.fast_folder()) as name:
        base = Path(name)
        jobs = Writers(12, 6000, "IVF4,SQ8")
        jobs.prepare("", base / "before")
        jobs.prepare("", base / "warm")  # loads what the children then share
        order = chance.sample(TURNS, len(TURNS))
        for turn in range(number):
            kinds, schedule = order[turn % len(order)]
            if kinds not in expected:
                folder = base / "-".join(kinds)
                shutil.copytree(base / "before", folder)
                for kind in kinds:
                    assert children.ends_well(jobs.run, kind, folder), f"{kind} failed alone"
                expected[kinds] = stores.state(folder)
            folder = base / str(turn)
            shutil.copytree(base / "before", folder)
            meeting, well = both(jobs, kinds, folder, schedule)
            counts[f"{schedule}: {kinds[0]} + {kinds[1]}"] += 1
            counts["refusals"] += meeting.refusals.value
            counts["done again"] += meeting.again.value
            counts["overlaps"] += meeting.met.is_set()
            state = stores.state(folder)
            differ = sorted(
                name
                for name in {*state, *expected[kinds]}
                if state.get(name) != expected[kinds].get(name)
            )
            problem = None if well else "a job failed"
            if differ:
                problem = f"other bytes in {len(differ)} files, {', '.join(differ[:4])}"
            if not meeting.met.is_set():
                problem = "the two did not meet"
            if problem:
                wrong.append(f"{schedule} {kinds} (seed {seed}, {turn}): {problem}")
                say(wrong[-1], flush=True)
            shutil.rmtree(folder)
    return counts, wrong


if __name__ == "__main__":
    sys.exit(cases.main(run, 200))
