"""Datastores that mean harm, whose hashes and checksum fit, through every command.

    python tests/durability/hostile.py --number 5000

Each case is a datastore that was attacked: huge numbers, names, links, tables and indexes that are
not what they say. One command is run on it, in a process with limits on memory and time. It may
refuse with one line, or go on. A crash, another exception, a hang, a file opened outside the
datastore's folder, and more memory than 256 MB (2 GiB for what is large), are failures. The fuzzer
changes the numbers of the files.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import sys
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace

import attacks
import cases
import children
import stores
import torch
from folders import read_content, write_content
from gate_cases import random_meta_k
from torch import nn

from knn_logits import (
    Datastore,
    Document,
    IndexConfig,
    KNNConfig,
    KNNLogitsProcessor,
    build_index,
    explain,
    tune,
)
from knn_logits.building.clustering import cluster
from knn_logits.building.removing import compact, remove_documents
from knn_logits.building.updating import add_documents
from knn_logits.cli import main as command_line
from knn_logits.engine.compatibility import check_model
from knn_logits.engine.location import KeyLocation
from knn_logits.errors import MismatchError
from knn_logits.hub.card import card
from knn_logits.hub.push import push_to_hub
from knn_logits.mixture.gates.stored import save_gate
from knn_logits.search.retriever import Retriever
from knn_logits.store.job import record_file

# What resides in memory may grow by this much above what the command takes undisturbed.
RESIDENT, RESIDENT_OF_LARGE = 256 << 20, 2 << 30
MEMORY = 3 << 30
SECONDS = 120
INDEXES = ("IVF4,SQ8", "IVF4,PQ8x4", "exact", "Flat", "HNSW8")
COSINE = IndexConfig("IVF2,SQ8", "cosine")
TEXT = "When error code E42 appears, the pump has run dry. Close the valve and wait."


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


# Commands. Each returns "accepted" or raises.


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


def use(folder):
    store = folder / "store"
    search(store)
    model, tokenizer = stores.model(), stores.tokenizer()
    found = Datastore(store)
    inputs = tokenizer(TEXT, return_tensors="pt")
    with KNNLogitsProcessor(model, found, k=4) as knn:
        output = model.generate(**inputs, logits_processor=[knn], max_new_tokens=2)
        trace = knn.trace(output, tokenizer)
    steps = [*trace[0].tokens, *explain(model, tokenizer, found, TEXT, k=4)[0].tokens]
    assert all(0.0 <= one.p <= 1.0 for one in steps), "a probability that is none"


@contextmanager
def exit_codes():
    """Notes the exit status in place of ending."""
    codes = []
    try:
        yield codes
    except SystemExit as stop:
        codes.append(stop.code)


def by_command_line(*arguments):
    def run(folder):
        sys.argv = ["knn-logits", arguments[0], str(folder / "store"), *arguments[1:]]
        os.environ["KNN_LOGITS_DEBUG"] = "1"
        with (
            Path(os.devnull).open("w") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
            exit_codes() as codes,
        ):
            command_line()
        return "refused" if any(codes) else "accepted"

    return run


def compacted(folder):
    remove_documents(folder / "store", ["0-1"])
    Datastore(compact(folder / "store").folder, full=True)


def add(folder):
    more = [Document(TEXT, "new", title="new")]
    add_documents(stores.model(), stores.tokenizer(), folder / "store", more, batch_tokens=64)


def tuned(folder):
    texts = [Document(TEXT, "a"), Document(TEXT[::-1], "b")]
    model, tokenizer = stores.model(), stores.tokenizer()
    tune(model, tokenizer, folder / "store", texts, samples=10, write=True, force=True)


def push(folder):
    store = Datastore(folder / "store")
    push_to_hub(store, "org/name", dry_run=True)
    card(store.manifest, "org/name", old=card(store.manifest, "org/name"))


COMMANDS = {
    "open": use,
    "verify": by_command_line("verify", "--full"),
    "info": by_command_line("info"),
    "remove": lambda folder: remove_documents(folder / "store", ["0-1"]),
    "compact": compacted,
    "add": add,
    "index": lambda folder: build_index(Datastore(folder / "store"), COSINE),
    "cluster": lambda folder: cluster(folder / "store", 4),
    "tune": tuned,
    "push": push,
}


def limited(work, most):
    """A command under limits on time and on the memory that resides."""

    def run(folder):
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        start = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        try:
            return "refused" if work(folder) == "refused" else "accepted"
        finally:
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - start
            assert grown < most, f"{grown} bytes more than at the start"

    return run


# What is attacked


def build(base):
    """Datastores of several kinds, with clusters and gates."""
    for number, kind in enumerate(INDEXES):
        folder = base / f"mine-{number}"
        stores.Jobs(6, 6000, kind).build(folder)
        cluster(folder, 4)
        save_gate(random_meta_k(), folder / "gate.safetensors")
        content = read_content(folder)
        content["files"].append(record_file(folder / "gate.safetensors").model_dump(mode="json"))
        write_content(folder, content)
        if number % 2:
            remove_documents(folder, ["0-3"])


def warm_up(base):
    """Runs every command once in this process, so that its children have nothing to load."""
    for work in COMMANDS.values():
        folder = base / "warm"
        shutil.copytree(base / "mine-0", folder / "store")
        assert work(folder) != "refused"
        shutil.rmtree(folder)


def case(base, turn, chance):
    """Makes one case; returns its folder, its command, its attack, and what was done."""
    folder, name = base / str(turn), list(COMMANDS)[turn % len(COMMANDS)]
    source = chance.choice(sorted(base.glob("mine-*")))
    shutil.copytree(source, folder / "store")
    attack = chance.choice(attacks.ALL)
    what = f"{attack.__name__} of {source.name}"
    if attack in attacks.LARGE:
        # Its memory is not this process's, which is forked for each case.
        assert children.ends_well(attack, folder / "store", chance), what
    else:
        what += f" {attack(folder / 'store', chance)}"
    return folder, name, attack, what


def run(number, seed, say=print):
    cases.quiet()
    stores.quiet()
    report = cases.Report(number, seed, say)
    with tempfile.TemporaryDirectory(dir=cases.fast_folder()) as name:
        base = Path(name)
        # A process that holds less is forked faster.
        assert children.ends_well(build, base)
        warm_up(base)
        (base / "outside").write_bytes(b"secret")
        for turn in range(number):
            chance = random.Random(f"{seed} {turn}")
            folder, command, attack, what = case(base, turn, chance)
            most = RESIDENT_OF_LARGE if attack in attacks.LARGE else RESIDENT
            work = limited(COMMANDS[command], most)
            result, text = children.outcome(work, folder, memory=MEMORY)
            with suppress(OSError):
                shutil.rmtree(folder)
            report.counts[f"{command}: {result}"] += 1
            report.counts[attack.__name__] += 1
            fine = result in ("refused", "accepted")
            report.note(turn, f"{command} {what}", result, text, fine=fine)
    return report.counts, report.wrong


if __name__ == "__main__":
    sys.exit(cases.main(run, 5000))
