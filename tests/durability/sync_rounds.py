"""Edits a folder at random, killing `sync` at random moments, and compares with a fresh build.

    python tests/durability/sync_rounds.py --number 50

After each round a datastore that was kept in step must answer as one that is built of the folder
anew, and after `compact` no byte of a document that is gone may be left in its folder.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import children
import kills
import numpy as np
import stores
import torch
from distances import weighing

from knn_logits import (
    Datastore,
    IndexConfig,
    KNNConfig,
    Retriever,
    build_datastore,
    compact,
    read_corpus,
    sync_documents,
)
from knn_logits.mixture.distribution import log_p_knn_of

SETTINGS = {"window": stores.WINDOW, "k": 16, "lmbda": 0.5, "temperature": 5.0, "calibrate": False}
WORDS = " ".join(stores.TEXTS).split()
SMALL = {"batch_tokens": stores.BATCH_TOKENS, "shard_bytes": 2048}


def document(chance, mark):
    """A text with a word that no other has, which its bytes are looked for by."""
    words = [chance.choice(WORDS) for _ in range(chance.randint(8, 60))]
    return f"{' '.join(words)} {mark} {' '.join(words[:4])}"


def edit(folder, chance, number, marks):
    """Adds, changes, renames and deletes files; returns the marks of what is gone."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    gone = []
    for turn in range(chance.randint(0, 4)):
        mark = f"mark{number}x{turn}"
        what = chance.choice(("add", "add", "change", "rename", "delete"))
        if what == "add" or len(files) < 4:
            path = folder / chance.choice(("", "deep", "deep/er")) / f"{mark}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            files.append(path)
        else:
            path = chance.choice(files)
            if what == "rename":
                there = path.with_name(f"{mark}.txt")
                path.rename(there)
                marks[there] = marks.pop(path)
                files[files.index(path)] = there
                continue
            gone.append(marks.pop(path))
            if what == "delete":
                path.unlink()
                files.remove(path)
                continue
        path.write_text(document(chance, mark))
        marks[path] = mark
    return gone


def synced(store, folder):
    documents = read_corpus([str(folder)])
    return sync_documents(stores.model(), stores.tokenizer(), store, documents, **SMALL)


def killed(store, folder, chance, counts, seconds):
    """Starts `sync` and kills it, some times over; a reader sees a whole datastore each time."""
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        number = children.fork(synced, store, folder)
        status = kills.ends(number, chance.uniform(0, seconds))
        if status is not None:
            assert status == 0, "sync failed"
            counts["ended before a kill"] += 1
            continue
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        counts["kills"] += 1
        Datastore(store, full=True)


def texts(store):
    """Id and tokens of what is found, in an order that both datastores have."""
    table, removed = store.documents, set(store.manifest.removed)
    spans = zip(table.ids, table.first.tolist(), table.length.tolist(), strict=True)
    return sorted(
        (id, store.tokens[first : first + length].tolist())
        for number, (id, first, length) in enumerate(spans)
        if number not in removed
    )


def answers(store, queries, targets):
    """What the neighbors give each token, and how far they are."""
    retriever = Retriever(store, KNNConfig(k=16, temperature=5.0))
    found = retriever.search(queries)
    distances = found.distances.sort(dim=-1).values
    weights = weighing(retriever).log_weights(found)
    knn = [log_p_knn_of(weights, found.values, token) for token in targets]
    return distances.numpy(), torch.stack(knn).exp().numpy()


def same_answers(mine, theirs, chance):
    assert texts(mine) == texts(theirs), "other documents"
    entries = np.array(sorted(chance.sample(range(len(theirs)), min(40, len(theirs)))))
    queries = torch.from_numpy(theirs.keys(entries).astype(np.float32))
    tokens = theirs.values[entries].long()
    targets = [tokens, tokens.roll(1)]
    # A matrix product of another shape rounds otherwise, and the keys are of half precision.
    for one, other in zip(
        answers(mine, queries, targets), answers(theirs, queries, targets), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0.02, atol=0.01)


def no_byte(folder, marks):
    """Neither text nor tokens of what is gone."""
    tokenizer = stores.tokenizer()
    content = b"".join(path.read_bytes() for path in folder.iterdir())
    for mark in marks:
        ids = tokenizer(f" {mark}")["input_ids"]
        # The number of the mark alone: every mark begins alike.
        assert np.array(ids, np.int32).tobytes() not in content, f"tokens of {mark}"


def run(rounds, seed, say=print):
    """Returns how much was done; what is wrong is an `AssertionError`."""
    stores.quiet()
    chance, counts, marks = random.Random(seed), Counter(), {}
    with tempfile.TemporaryDirectory() as name:
        os.environ["KNN_LOGITS_CACHE"] = f"{name}/verified"
        base = Path(name)
        folder, store = base / "folder", base / "store"
        folder.mkdir()
        for number in range(6):
            path = folder / f"first{number}.txt"
            marks[path] = f"mark0x9{number}"
            path.write_text(document(chance, marks[path]))
        built = {**SETTINGS, "index": IndexConfig("exact")}
        model, tokenizer = stores.model(), stores.tokenizer()
        build_datastore(model, tokenizer, read_corpus([str(folder)]), store, **built)
        gone, seconds = [], 0.2
        for number in range(1, rounds + 1):
            gone += edit(folder, chance, number, marks)
            killed(store, folder, chance, counts, seconds)
            started = time.monotonic()
            done = synced(store, folder)
            # As long as the longest so far, since most of the work may be done by now.
            seconds = max(seconds, time.monotonic() - started)
            for what, count in done.to_dict().items():
                counts[what] += count
            assert stores.is_clean(store), "files are left over"
            again = synced(store, folder)
            differing = (*again.added, *again.changed, *again.removed)
            assert not differing, f"the same is not the same: {differing}"
            fresh = build_datastore(
                model, tokenizer, read_corpus([str(folder)]), base / f"fresh{number}", **built
            )
            same_answers(Datastore(store), fresh, chance)
            if chance.random() < 0.4:
                no_byte(compact(store).folder, gone)
                same_answers(Datastore(store), fresh, chance)
                counts["compactions"] += 1
        no_byte(compact(store).folder, gone)
        counts["documents gone"] = len(gone)
        counts["rounds"] = rounds
    say(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("knn_logits").setLevel(logging.ERROR)
    run(arguments.number, arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
