"""Datastores that mean harm, whose hashes and checksum fit, opened under a limit on memory.

    python tests/durability/hostile.py --number 3000

Each is opened, searched and held against a model by a process of its own, which may take 2 GiB
beyond what it starts with. It may be refused with an error of the package's own, or be accepted
where nothing in it contradicts the rest. A crash, another exception, a hang, a file opened outside
the datastore's folder, or more memory, is a failure.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import attacks_inside
import children
import damage
import numpy as np
import torch
from torch import nn

from knn_logits import Datastore, KNNConfig, Retriever
from knn_logits.capture.location import KeyLocation
from knn_logits.compatibility import check_model

MEMORY = 2 << 30
SLOW = 10
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
    store = Datastore(folder)
    manifest = store.manifest
    try:
        retriever = Retriever(store, KNNConfig(k=min(manifest.settings.k, 64)))
        queries = torch.zeros(3, manifest.dim)
        queries[1] += 1
        queries[2] = float("nan")
        found = retriever.search(queries)
        ids = found.ids[found.mask]
        assert not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) < len(store))
        for entry in (0, len(store) - 1, *ids[:4].tolist()):
            passage = store.passage(entry)
            assert 0 <= passage.token < 1 << 31
        store.documents.numbers_of("0-0")
        store.documents.numbers_of(store.documents[0].id)
    finally:
        repr(store)
        children_memory()
    check_model(MODEL, store, KeyLocation("x", "mlp", "input"))
    return "accepted"


def children_memory():
    """Fails where this process holds far more than it started with."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert resident - START < RESIDENT, f"{resident - START} bytes more than at the start"


START = 0


def run(number, seed, say=print):
    """Opens hostile datastores; returns how they ended, and what went wrong."""
    global START
    damage.quiet()
    chance, counts, wrong = random.Random(seed), Counter(), []
    np.random.seed(seed)
    with tempfile.TemporaryDirectory(dir=damage.fast_folder()) as name:
        base = Path(name)
        made = damage.references(base)
        (base / "outside").write_bytes(b"secret")
        START = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
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
            what = attack(folder, chance, other)
            began = time.monotonic()
            result, text = children.outcome(use, folder, memory=MEMORY)
            if time.monotonic() - began > SLOW:
                say(f"slow: {attack.__name__} {what}", flush=True)
            shutil.rmtree(folder)
            counts[result] += 1
            counts[f"{attack.__name__}: {result}"] += 1
            if result not in ("refused", "accepted"):
                line = text.strip().splitlines()[-6:] if text else [""]
                wrong.append(f"{attack.__name__} {what} (seed {seed}, {turn}): {result}")
                say(wrong[-1], "\n    ".join(["", *line]), flush=True)
            if (turn + 1) % 500 == 0:
                say(f"{turn + 1} of {number}", flush=True)
    return counts, wrong


if __name__ == "__main__":
    sys.exit(damage.main(run, 3000))
