"""Settings chosen on a datastore's own text, without the query's own document."""

import numpy as np
import pytest
import torch
from conftest import TEXTS
from distances import from_distances
from handmade import make_store, naive_entries

import knn_logits
from knn_logits.building import builder, settings_choice
from knn_logits.building.settings_choice import part_of_entries, sample_pieces, without_part

DOCUMENTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [10, 11], list(range(12, 20))]


@pytest.mark.parametrize("concatenate", [False, True])
def test_parts_are_documents(tmp_path, monkeypatch, concatenate):
    monkeypatch.setattr(settings_choice, "_LARGEST_SHARE", 1.0)
    store = make_store(tmp_path / "s", DOCUMENTS, concatenate=concatenate)
    entries = naive_entries(DOCUMENTS, concatenate=concatenate)
    parts = part_of_entries(store)
    assert parts.tolist() == [number + 1 for _, number, _ in entries]
    places = np.array([place for place, _, _ in entries])
    assert store.contexts.entries_at(places).tolist() == list(range(len(entries)))


def test_a_large_document_is_cut_into_parts(tmp_path):
    documents = [[1] * 300, [2] * 60, [3] * 40]
    store = make_store(tmp_path / "s", documents)
    parts = part_of_entries(store)
    # A twentieth of 400 tokens is 20: the first document becomes 15 parts, the others stay whole.
    assert len(set(parts[:299].tolist())) == 15
    assert max(np.bincount(parts[:299])) == 20
    assert len(set(parts[299:358].tolist())) == 1
    assert len(set(parts[358:].tolist())) == 1
    assert len(set(parts.tolist())) == 17


def test_neighbors_of_the_own_part_are_taken_out():
    parts = np.array([1, 1, 2, 3, 3], dtype=np.int32)
    neighbors = from_distances(
        torch.tensor([[0, 2, 4], [3, 1, -1]]),
        torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, np.inf]]),
        torch.zeros(2, 3, dtype=torch.int64),
    )
    left = without_part(neighbors, torch.tensor([1, 3], dtype=torch.int32), parts)
    assert left.ids.tolist() == [[-1, 2, 4], [-1, 1, -1]]
    assert left.distances.tolist() == [[np.inf, 2.0, 3.0], [np.inf, 2.0, np.inf]]


def test_the_sample_is_whole_windows_up_to_its_size(store, monkeypatch):
    everything = sample_pieces(store, 0)
    assert sum(piece.size - piece.skip for piece in everything) == len(store)
    for piece in everything:
        stored = store.tokens[piece.first : piece.first + piece.size + 1]
        assert np.array_equal(piece.tokens, stored)
    monkeypatch.setattr(settings_choice, "_MIN_TOKENS", 60)
    some = sample_pieces(store, 0)
    assert 60 <= sum(piece.size - piece.skip for piece in some) < 60 + 64
    firsts = [{piece.first for piece in sample_pieces(store, seed)} for seed in range(5)]
    assert len({frozenset(one) for one in firsts}) > 1


@pytest.fixture(autouse=True)
def _no_gate(monkeypatch):
    """Fits no gate, which takes longer than the settings."""
    monkeypatch.setattr(builder, "write_gate", lambda *_: None)


@pytest.fixture(scope="module")
def corpus():
    """Documents that share their wording, so that others predict each one."""
    return [f"{TEXTS[n % 8]} {TEXTS[(n + 3) % 8]} Number {n}." for n in range(24)]


def build(model, tokenizer, corpus, folder, **settings):
    window = knn_logits.WindowConfig(64, 32)
    return knn_logits.build_datastore(model, tokenizer, corpus, folder, window=window, **settings)


def test_a_build_is_calibrated(model, tokenizer, corpus, tmp_path):
    told = []
    store = build(
        model, tokenizer, corpus, tmp_path / "s", progress=lambda *what: told.append(what)
    )
    found = store.manifest.settings
    assert found.calibrated
    # Each text is in three documents, and a model with random weights knows nothing.
    assert found.lmbda > 0.5
    assert ("calibration", 0) in {(phase, done) for phase, done, _ in told}
    plain = build(model, tokenizer, corpus, tmp_path / "p", calibrate=False)
    assert not plain.manifest.settings.calibrated
    assert plain.manifest.settings.lmbda == 0.25
    held_out = [f"{TEXTS[2]} {TEXTS[6]}"]
    better = knn_logits.evaluate(model, tokenizer, store, held_out).perplexity
    worse = knn_logits.evaluate(model, tokenizer, plain, held_out).perplexity
    assert better.interpolated < worse.interpolated


THREE = {"lmbda": 0.1, "k": 7, "temperature": 3.0}


@pytest.mark.parametrize(
    ("given", "calibrated"),
    [
        ({"lmbda": 0.1, "k": 7}, True),
        ({"temperature": 3.0}, True),
        ({"suffix_weight": 3.0}, True),
        (THREE, False),
        (THREE | {"suffix_weight": 3.0}, False),
        ({"calibrate": False, "suffix_weight": 0.5}, False),
        ({"store_keys": False, "suffix_weight": 3.0}, False),
    ],
)
def test_what_is_given_is_kept(model, tokenizer, corpus, tmp_path, given, calibrated):
    found = build(model, tokenizer, corpus, tmp_path / "s", **given).manifest.settings
    kept = {name: value for name, value in given.items() if name not in ("calibrate", "store_keys")}
    assert kept.items() <= found.model_dump().items()
    assert found.calibrated is calibrated
    assert given is not THREE or found.suffix_weight == 1.0


def test_too_little_text_keeps_the_defaults(model, tokenizer, tmp_path):
    store = build(model, tokenizer, TEXTS[:3], tmp_path / "s", lmbda=0.5)
    found = store.manifest.settings
    assert (found.k, found.lmbda, found.calibrated) == (1024, 0.5, False)


def test_a_single_document_is_calibrated_on_its_parts(model, tokenizer, corpus, tmp_path):
    store = build(model, tokenizer, ["\n".join(corpus)], tmp_path / "s")
    assert store.manifest.settings.calibrated
    assert store.manifest.settings.lmbda > 0.5
