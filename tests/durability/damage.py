"""Damages datastores in every way a disk or a hand can, and opens and searches each one.

    python tests/durability/damage.py --number 20000

Each damaged datastore is opened by a process of its own. It must be refused with an error of the
package's own, or hold exactly what it held before (a manifest whose white space changed). A crash,
another exception, a hang, or an answer from other content is a failure.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import children
import faiss
import numpy as np
import torch

from knn_logits import Datastore, KNNConfig, Retriever
from knn_logits.store import layout


def fast_folder():
    """Where thousands of small files are written quickly."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Reference:
    """A whole datastore: its files in memory, and what it answers."""

    def __init__(self, folder):
        self.folder = folder
        paths = [path for path in folder.iterdir() if path.name != layout.LOCK]
        self.files = {path.name: path.read_bytes() for path in paths}
        self.answers = answers(folder)

    def copy(self, folder, changed):
        """A folder with the same files but for those that are `changed` (None: missing)."""
        folder.mkdir()
        for name in self.files:
            if name not in changed:
                os.link(self.folder / name, folder / name)
            elif changed[name] is not None:
                (folder / name).write_bytes(changed[name])


class Report:
    """Counts how cases ended, and notes those that ended wrongly."""

    def __init__(self, number, seed, say):
        self.counts, self.wrong = Counter(), []
        self._number, self._seed, self._say = number, seed, say

    def note(self, turn, what, result, text, *, fine):
        self.counts[result] += 1
        if not fine:
            lines = text.strip().splitlines()[-8:] if text else [""]
            self.wrong.append(f"{what} (seed {self._seed}, {turn}): {result}")
            self._say(self.wrong[-1], "\n    ".join(["", *lines]), flush=True)
        if (turn + 1) % 500 == 0:
            self._say(f"{turn + 1} of {self._number}", flush=True)


def quiet():
    """One thread, and nothing that is remembered of a datastore that was opened."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    logging.getLogger("knn_logits").setLevel(logging.ERROR)
    os.environ["KNN_LOGITS_CACHE"] = "/dev/null/none"


def answers(folder):
    """All that can be asked of a datastore, as bytes and plain values."""
    store = Datastore(folder)
    ids = np.arange(len(store))
    queries = torch.from_numpy(store.keys(ids[:: max(1, len(ids) // 16)]).astype(np.float32))
    found = Retriever(store, KNNConfig(k=8)).search(queries)
    rows = [store.documents[number] for number in range(len(store.documents))]
    return (
        store.manifest,
        store.tokens.tobytes(),
        store.keys(ids).tobytes(),
        store.values.numpy().tobytes(),
        rows,
        {name: one.tobytes() for name, one in store.checks.items()},
        found.ids.tolist(),
        found.distances.tolist(),
        [store.passage(entry) for entry in (0, len(store) - 1)],
    )


KINDS = ("IVF4,SQ8", "exact", "PCA16,IVF2,Flat", "Flat")


def references(base):
    """Datastores of several kinds, and of each another one that is much like it.

    They are built by a child, since a process that holds less is forked faster.
    """
    assert children.ends_well(_build_references, base), "the datastores could not be built"
    return [
        (Reference(base / f"{number}-mine"), Reference(base / f"{number}-other"))
        for number in range(len(KINDS))
    ]


def _build_references(base):
    import stores

    stores.quiet()
    for number, index in enumerate(KINDS):
        jobs = stores.Jobs(6, 6000, index)
        jobs.build(base / f"{number}-mine")
        # The same documents the other way around.
        jobs.build(base / f"{number}-other", step=-1)


# Ways to damage the bytes of a file


def cut(content, chance):
    return content[: chance.choice([0, 1, len(content) - 1, chance.randrange(len(content))])]


def longer(content, chance):
    return content + chance.randbytes(chance.choice([1, 8, 4096]))


def flip(content, chance):
    place = chance.randrange(len(content))
    changed = bytearray(content)
    changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


def flips(content, chance):
    for _ in range(chance.randint(2, 64)):
        content = flip(content, chance)
    return content


def block(content, chance, fill):
    size = min(len(content), chance.choice([1, 8, 64, 512, 4096]))
    place = chance.randrange(len(content) - size + 1)
    return content[:place] + fill(size) + content[place + size :]


def zeroed(content, chance):
    return block(content, chance, bytes)


def noise(content, chance):
    return block(content, chance, chance.randbytes)


def misplaced(content, chance):
    """A block that was written to another place."""
    size = min(len(content), chance.choice([8, 64, 512]))
    start = chance.randrange(len(content) - size + 1)
    return block(content, chance, lambda n: (content[start : start + size] * n)[:n])


BYTES = [cut, longer, flip, flip, flips, zeroed, noise, misplaced]


# Ways to damage a datastore: (reference, other, chance) to {name: bytes or None}


def one_file(mine, _, chance):
    name = chance.choice(sorted(mine.files))
    return {name: chance.choice(BYTES)(mine.files[name], chance)}


def manifest_bytes(mine, _, chance):
    return {layout.MANIFEST: chance.choice(BYTES)(mine.files[layout.MANIFEST], chance)}


def several_files(mine, other, chance):
    changed = {}
    for _ in range(chance.randint(2, 4)):
        changed |= one_file(mine, other, chance)
    return changed


def missing(mine, _, chance):
    return {chance.choice(sorted(mine.files)): None}


def swapped(mine, _, chance):
    one, other = chance.sample(sorted(mine.files), 2)
    return {one: mine.files[other], other: mine.files[one]}


def shards_swapped(mine, _, chance):
    shards = [name for name in mine.files if layout.kind_of(name) == "keys"]
    one, other = chance.sample(shards[:-1], 2)
    return {one: mine.files[other], other: mine.files[one]}


def foreign(mine, other, chance):
    names = sorted(set(mine.files) & set(other.files))
    chosen = chance.sample(names, chance.randint(1, len(names) - 1))
    return {name: other.files[name] for name in chosen}


def edited(mine, _, chance):
    """A value of the manifest that somebody changed, without the checksum."""
    content = json.loads(mine.files[layout.MANIFEST])
    place = content
    while True:
        key = chance.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
        value = place[key]
        if not isinstance(value, (dict, list)) or not value or chance.random() < 0.1:
            break
        place = value
    choices = [None, 0, 1, -1, 2**31, 10**30, 0.5, "", "x", [], {}, True, "../x", value, "delete"]
    if isinstance(value, int):
        choices += [value + 1, value - 1, value * 2] * 3
    if isinstance(value, str) and value:
        choices += [value[1:], value.upper(), value[::-1]] * 3
    new = chance.choice(choices)
    if new == "delete":
        del place[key]
    else:
        place[key] = new
    return {layout.MANIFEST: json.dumps(content, indent=1).encode()}


DAMAGES = [one_file] * 8 + [manifest_bytes, edited] * 3 + [several_files, swapped, foreign] * 2
DAMAGES += [missing, shards_swapped]


def run(number, seed, say=print):
    """Damages datastores; returns how each kind of damage ended, and what went wrong."""
    quiet()
    chance, report = random.Random(seed), Report(number, seed, say)
    with tempfile.TemporaryDirectory(dir=fast_folder()) as name:
        base = Path(name)
        made = references(base)
        for turn in range(number):
            mine, other = chance.choice(made)
            damage = chance.choice(DAMAGES)
            changed = damage(mine, other, chance)
            folder = base / str(turn)
            mine.copy(folder, changed)

            def work(folder, mine=mine):
                return "the same" if answers(folder) == mine.answers else "wrong"

            result, text = children.outcome(work, folder)
            shutil.rmtree(folder)
            same = all(mine.files[name] == content for name, content in changed.items())
            if same and result == "the same":
                result = "not damaged"
            harmless = result == "the same" and set(changed) == {layout.MANIFEST}
            fine = harmless or result in ("refused", "not damaged")
            what = f"{damage.__name__} {sorted(changed)}"
            report.note(turn, what, result, text, fine=fine)
    return report.counts, report.wrong


def main(run, default):
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=default)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts, wrong = run(arguments.number, arguments.seed)
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"failures: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(run, 20_000))
