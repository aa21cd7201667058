"""A small model and the jobs that the tests of durability disturb."""

import functools
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The scripts run without pytest, which puts this folder on the path.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "lab"))
sys.path.insert(2, str(Path(__file__).parents[1] / "hub"))

import torch
from conftest import TEXTS, make_gpt2
from folders import contents, hashes
from gate_cases import random_meta_k
from handmade import shards_of
from legacy_files import faiss_index, knn_transformers, stored_keys
from tuned import write_settings

from knn_logits import Datastore, Document, IndexConfig, WindowConfig, build_datastore, build_index
from knn_logits.building.indexing import build_suffixes, cluster
from knn_logits.building.removing import compact, remove_documents
from knn_logits.building.updating import add_documents, sync_documents
from knn_logits.lab.importing import import_datastore
from knn_logits.store import layout

DOCUMENTS = [
    Document(f"{text} {TEXTS[(number + turn) % 8]}", f"{turn}-{number}", title=f"title {number}")
    for turn in range(3)
    for number, text in enumerate(TEXTS)
]
WINDOW = WindowConfig(32, 16)
BATCH_TOKENS = 64


def quiet():
    """One thread and small batches, for children that are forked."""
    import logging

    import faiss

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    logging.getLogger("knn_logits").setLevel(logging.ERROR)
    from knn_logits.engine import windows

    windows._BUFFER_BYTES = 4096


@functools.cache
def model():
    return make_gpt2(layers=1, width=32)


@functools.cache
def tokenizer():
    import conftest

    return conftest.tokenizer.__wrapped__()


class Jobs:
    """Each job, with what is there before it; small shards, so that there are many steps.

    Args:
        documents: Taken for a build; the last third of them is what is added.
        shard_bytes: The most bytes of a file of keys.
        index: The index that is built.
    """

    KINDS = ("build", "add", "sync", "remove", "compact", "index", "suffixes", "tune")

    def __init__(self, documents=24, shard_bytes=4096, index="IVF8,SQ8"):
        self._documents = DOCUMENTS[:documents]
        self._first = documents - documents // 3
        self._shard_bytes = shard_bytes
        self._index = IndexConfig(index)
        self._of_first = None

    def build(self, folder, last=None):
        with shards_of(self._shard_bytes):
            return build_datastore(
                model(),
                tokenizer(),
                self._documents[:last],
                folder,
                window=WINDOW,
                index=self._index,
                calibrate=False,
                batch_tokens=BATCH_TOKENS,
            )

    def add(self, folder):
        more = self._documents[self._first :]
        return add_documents(model(), tokenizer(), folder, more, batch_tokens=BATCH_TOKENS)

    def sync(self, folder):
        """Two documents go, one is changed, the last third comes."""
        given = self._documents[2:]
        given[0] = Document("Other words than before.", given[0].id)
        return sync_documents(model(), tokenizer(), folder, given, batch_tokens=BATCH_TOKENS)

    def compact(self, folder):
        return compact(folder)

    def index(self, folder):
        return build_index(Datastore(folder), IndexConfig("IVF4,Flat", "cosine"))

    def suffixes(self, folder):
        return build_suffixes(folder)

    def cluster(self, folder):
        return cluster(folder, 6)

    def remove(self, folder):
        return remove_documents(folder, ["0-0", "0-3"])

    def tune(self, folder):
        """What `tune --write` writes; before it, nothing is."""
        write_settings(Datastore(folder), 8, 0.5, 3.0)

    def gate(self, folder):
        """The same with a gate."""
        write_settings(Datastore(folder), 8, 0.5, 3.0, random_meta_k())

    def run(self, kind, folder):
        with shards_of(self._shard_bytes):
            return getattr(self, kind)(folder)

    def prepare(self, kind, folder):
        """What is there before a job: nothing, some documents, or all with two removed."""
        if kind == "compact":
            self.build(folder)
            build_suffixes(folder)
            remove_documents(folder, ["0-0", "0-3"])
        elif kind != "build":
            self._copy_of_first(folder)
        if kind == "add":
            build_suffixes(folder)

    def _copy_of_first(self, folder):
        """What most jobs begin with, which is built once."""
        if self._of_first is None:
            self.build(folder, self._first)
            self._of_first = contents(folder)
            return
        folder.mkdir()
        for name, content in self._of_first.items():
            (folder / name).write_bytes(content)

    def place(self, kind, folder):
        """Where the datastore is of which a job is given the folder."""
        return folder

    def state(self, kind, folder):
        """All that a reader can see after a job, by content."""
        return state(self.place(kind, folder))


class EveryJob(Jobs):
    """Those that need something from outside as well: another system's files, or a Hub.

    Args:
        outside: A folder for it.
        settings: As for `Jobs`.
    """

    HUB_NAME = "org/texts"

    def __init__(self, outside, **settings):
        super().__init__(**settings)
        stream = build_datastore(
            model(),
            tokenizer(),
            self._documents,
            outside / "stream",
            window=WindowConfig(256, 128),
            concatenate=True,
            index=IndexConfig("exact"),
            calibrate=False,
        )
        self._theirs = knn_transformers(
            outside / "theirs",
            stream,
            index=faiss_index(stored_keys(stream)),
            clusters=stream.values.numpy() % 7,
        )
        self._published = outside / "published"
        self.build(self._published)

    def publish(self, token):
        """Puts a datastore on the Hub of the environment."""
        from knn_logits import push_to_hub

        push_to_hub(self._published, self.HUB_NAME, token=token)

    def import_(self, folder):
        return import_datastore(model(), tokenizer(), self._theirs, folder)

    def pull(self, folder):
        from huggingface_hub import constants

        from knn_logits import pull

        constants.HF_HUB_CACHE = str(folder / "cache")
        return pull(self.HUB_NAME, keys=True, out=self.place("pull", folder))

    def prepare(self, kind, folder):
        if kind not in ("import_", "pull"):
            super().prepare(kind, folder)

    def place(self, kind, folder):
        return folder / "copy" if kind == "pull" else folder

    def state(self, kind, folder):
        found = super().state(kind, folder)
        if kind == "pull":
            for path in folder.glob("cache/datasets--*/*/**/*"):
                # What a download leaves half done has a name of its own, and is swept away later.
                if path.is_file() and path.suffix != ".incomplete" and path.name[:4] != "tmp_":
                    found[str(path.relative_to(folder))] = path.read_bytes()
        return found


def state(folder):
    """All that a reader can see of a folder, by content."""
    return hashes(folder) if folder.exists() else {}


def visible(folder):
    """What a reader finds: the manifest's checksum, or nothing."""
    if not (folder / layout.MANIFEST).exists():
        return None
    store = Datastore(folder)
    assert len(store.values) == len(store)
    return store.manifest.checksum
