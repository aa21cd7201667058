"""A folder in which the documentation's commands and code can be run unchanged."""

import importlib.util
import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import PAIRS, TEXTS

import knn_logits

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "tiny_model"


def rows_of(name, first, last):
    lines = (TINY / f"{name}.jsonl").read_text("utf-8").splitlines()[first:last]
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def world(build, model_folder, marian_folder, tmp_path_factory):
    """A folder with the models, documents and datastores that the examples name.

    A folder has precedence over a name on the Hub, so `gpt2` is a tiny model here.
    """
    folder = tmp_path_factory.mktemp("world")
    (folder / "gpt2").symlink_to(model_folder)
    (folder / "datastores").symlink_to(ROOT / "datastores")
    (folder / "Helsinki-NLP").mkdir()
    (folder / "Helsinki-NLP" / "opus-mt-en-de").symlink_to(marian_folder)

    documents = folder / "my-documents"
    documents.mkdir()
    for number, text in enumerate(TEXTS):
        (documents / f"d{number}.txt").write_text(text + "\n")
    for row in rows_of("manual", 0, 8):
        (documents / f"{row['id']}.txt").write_text(row["text"] + "\n")
    (folder / "more").mkdir()
    (folder / "more" / "e1.txt").write_text("The second crane needs oil of grade five.\n")
    held_out = [{"id": row["id"], "text": row["text"]} for row in rows_of("chronicle", 10, 20)]
    (folder / "held-out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))
    (folder / "other.txt").write_text(" ".join(row["text"] for row in rows_of("manual", 36, 37)))
    for name in ("train", "test", "dev"):
        rows = [{"source": source, "target": target} for source, target in PAIRS[:4]]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    read = knn_logits.read_corpus([str(documents)])
    build(read, folder / "store")
    for name in ("manual", "chronicle"):
        texts = [knn_logits.Document(row["text"], row["id"]) for row in rows_of(name, 0, 6)]
        build(texts, folder / name)
    return folder


@pytest.fixture
def place(world, tmp_path, monkeypatch, short_training):
    """A copy of that folder, which is the current directory. Trainings are short."""
    copy = tmp_path / "world"
    shutil.copytree(world, copy, symlinks=True)
    # What a model writes by itself during a build would take most of the time.
    monkeypatch.setattr("knn_logits.building.own_texts.SAMPLED_TOKENS", 8)
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def names(place, mine, tokenizer, marian, pair_tokenizer):
    """The names that the examples in Python use without defining them."""
    return {
        "model": mine,
        "tokenizer": tokenizer,
        "store": knn_logits.Datastore(place / "store"),
        "inputs": tokenizer("When error code E42", return_tensors="pt"),
        "held_out": list(knn_logits.read_corpus(["held-out.jsonl"])),
        "translator": marian,
        "translator_tokenizer": pair_tokenizer,
    }


@pytest.fixture(scope="session")
def hook():
    """Loads a module of `docs/hooks`, or another script, by its path from the root."""

    def load(path):
        name = "docs_" + Path(path).stem
        spec = importlib.util.spec_from_file_location(name, ROOT / path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return load
