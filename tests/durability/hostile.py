"""Datastores that mean harm, whose hashes and checksum fit, opened under a limit on memory.

    python tests/durability/hostile.py --number 3000

Each is opened, searched and held against a model by a process of its own, which may take 2 GiB
beyond what it starts with. It may be refused with an error of the package's own, or be accepted
where nothing in it contradicts the rest. A crash, another exception, a hang, a file opened outside
the datastore's folder, or more memory, is a failure.
"""

from __future__ import annotations

import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import attacks_inside
import children
import damage
import numpy as np
import torch
from torch import nn

from knn_logits import Datastore, KNNConfig, Retriever
from knn_logits.engine.compatibility import check_model
from knn_logits.engine.location import KeyLocation
from knn_logits.errors import MismatchError

MEMORY = 2 << 30
SLOW = 10
LARGE = ("table", "long_table", "bomb", "json_text", "many_files")
# What resides in memory may grow by this much at most: the largest files here have a few megabytes.
RESIDENT = 1 << 30


class Model(nn.Module):
    """Enough of a model for a canary to be computed: two embeddings."""

    def __init__(self, vocabulary, dim):
        super().__init__()
        self.config = SimpleNamespace(to_dict=dict, model_type="gpt2", vocab_size=vocabulary)
        self.embedding = nn.Embedding(vocabulary, dim)
        self.mlp = nn.Identity()

    def get_output_embeddings(self):
        return None

    def forward(self, input_ids):
        return self.mlp(self.embedding(input_ids))


MODEL = Model(384, 32)


def use(folder):
    """Everything that is done with a datastore from elsewhere."""
    start = resident()
    try:
        return search(folder)
    finally:
        grown = resident() - start
        assert grown < RESIDENT, f"{grown} bytes more than at the start"


def resident():
    """Bytes that this process holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def search(folder):
    """Opens a datastore, searches it, and holds it against a model."""
    store = Datastore(folder)
    manifest = store.manifest
    retriever = Retriever(store, KNNConfig(k=min(manifest.settings.k, 64)))
    queries = torch.zeros(3, manifest.dim)
    queries[1] += 1
    queries[2] = float("nan")
    found = retriever.search(queries)
    ids = found.ids[found.mask]
    assert not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) < len(store))
    for entry in (0, len(store) - 1, *ids[:4].tolist()):
        assert 0 <= store.passage(entry).token < 1 << 31
    for wanted in ("0-0", store.documents[0].id):
        assert len(store.documents.numbers_of(wanted)) <= len(store.documents)
    repr(store)
    with suppress(MismatchError):
        check_model(MODEL, store, KeyLocation("x", "mlp", "input"))
    return "accepted"


def attacked(attack, folder, chance, other):
    """Lets an attack change a folder; by a child, where it takes much memory for that."""
    if attack.__name__ not in LARGE:
        return attack(folder, chance, other)
    children.ends_well(attack, folder, chance, other)
    return ""


def run(number, seed, say=print):
    """Opens hostile datastores; returns how they ended, and what went wrong."""
    damage.quiet()
    chance, report, spent = random.Random(seed), damage.Report(number, seed, say), Counter()
    np.random.seed(seed)
    with tempfile.TemporaryDirectory(dir=damage.fast_folder()) as name:
        base = Path(name)
        made = damage.references(base)
        (base / "outside").write_bytes(b"secret")
        for turn in range(number):
            mine, other = chance.choice(made)
            attack = attacks_inside.ALL[turn % len(attacks_inside.ALL)]
            folder = base / str(turn)
            mine.copy(folder, dict.fromkeys([]))
            # The files are links to the reference's; an attack replaces them.
            for path in list(folder.iterdir()):
                content = path.read_bytes()
                path.unlink()
                path.write_bytes(content)
            what = attacked(attack, folder, random.Random(f"{seed} {turn}"), other)
            began = time.monotonic()
            result, text = children.outcome(use, folder, memory=MEMORY)
            spent[attack.__name__] += time.monotonic() - began
            if time.monotonic() - began > SLOW:
                say(f"slow: {attack.__name__} {what}", flush=True)
            shutil.rmtree(folder)
            report.counts[f"{attack.__name__}: {result}"] += 1
            fine = result in ("refused", "accepted")
            report.note(turn, f"{attack.__name__} {what}", result, text, fine=fine)
    for name, seconds in spent.most_common(5):
        say(f"{name}: {seconds:.1f} s")
    return report.counts, report.wrong


if __name__ == "__main__":
    sys.exit(damage.main(run, 3000))
