"""Several datastores as one: merged by distance they are one datastore."""

import shutil

import numpy as np
import pytest
import torch
from conftest import TEXTS
from handmade import make_store

from knn_logits import Datastore, KNNConfig, KNNLogitsProcessor, Memory, WindowConfig, explain
from knn_logits.errors import ConfigError, MismatchError
from knn_logits.search.combined import open_retriever, open_stores
from knn_logits.search.retriever import Retriever

RANDOM = np.random.default_rng(7)
DOCUMENTS = [RANDOM.integers(0, 100, 9).tolist() for _ in range(12)]
KEYS = RANDOM.standard_normal((12 * 8, 4)).astype(np.float16)


def three(folder, metric="l2"):
    """Three datastores of four documents each, and one of all twelve."""
    parts = [
        make_store(
            folder / str(n), DOCUMENTS[4 * n : 4 * n + 4], KEYS[32 * n : 32 * n + 32], metric=metric
        )
        for n in range(3)
    ]
    return parts, make_store(folder / "all", DOCUMENTS, KEYS, metric=metric)


def asked(rows=9):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("k", [10, 500])
def test_by_distance_they_are_one_datastore(tmp_path, metric, k):
    parts, whole = three(tmp_path, metric)
    config = KNNConfig(k=k)
    found = open_retriever(parts, config).search(asked())
    expected = Retriever(whole, config).search(asked())
    for row in range(found.rows):
        pairs = zip(found.ids[row].tolist(), found.distances[row].tolist(), strict=True)
        others = zip(expected.ids[row].tolist(), expected.distances[row].tolist(), strict=True)
        mine, theirs = dict(pairs), dict(others)
        assert mine.keys() == theirs.keys()
        for entry, distance in mine.items():
            assert distance == pytest.approx(theirs[entry], abs=1e-4)


def test_a_datastore_that_finds_nothing_leaves_the_vote_to_the_others(tmp_path):
    parts, _ = three(tmp_path)
    gone = {"removed": tuple(range(len(parts[0].documents)))}
    parts[0].manifest.model_copy(update=gone).write(parts[0].folder)
    empty = Datastore(parts[0].folder)
    found = open_retriever([empty, parts[1]], KNNConfig(k=4)).search(asked())
    assert (found.ids >= 32).all()


def test_datastores_that_do_not_fit_together(tmp_path):
    parts, _ = three(tmp_path)
    other = make_store(tmp_path / "ip", DOCUMENTS, KEYS, metric="ip")
    with pytest.raises(MismatchError, match=r"metric differs \(l2, ip\)"):
        open_stores([parts[0], other])
    wider = make_store(tmp_path / "wide", [[1, 2, 3]], np.zeros((2, 5), np.float16))
    with pytest.raises(MismatchError, match="length of keys"):
        open_stores([parts[0], wider])
    with pytest.raises(ConfigError, match="no datastore"):
        open_stores([])
    assert len(open_stores([str(tmp_path / "0"), parts[1]])) == 2


# With a model


@pytest.fixture(scope="module")
def halves(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("halves")
    settings = {"window": WindowConfig(64, 32), "k": 16, "lmbda": 0.5, "temperature": 2.0}
    return [
        build(texts, folder / name, **settings)
        for name, texts in (("first", TEXTS[:4]), ("second", TEXTS[4:]))
    ]


def generated(model, tokenizer, stores, **settings):
    inputs = tokenizer("The harbour crane", return_tensors="pt")
    with KNNLogitsProcessor(model, stores, k=16, lmbda=0.5, temperature=2.0, **settings) as knn:
        output = model.generate(
            **inputs, max_new_tokens=16, do_sample=False, logits_processor=[knn]
        )
        return output, knn.trace(output, tokenizer)[0].tokens


def test_generation_from_halves_is_generation_from_the_whole(model, tokenizer, store, halves):
    output, tokens = generated(model, tokenizer, store)
    from_halves, traced = generated(model, tokenizer, halves)
    assert output.tolist() == from_halves.tolist()
    for one, other in zip(tokens, traced, strict=True):
        assert one.p == pytest.approx(other.p, abs=1e-5)
        assert one.influence == pytest.approx(other.influence, abs=1e-5)
        assert [n.snippet for n in one.neighbors] == [n.snippet for n in other.neighbors]
    for neighbor in (n for one in traced for n in one.neighbors):
        texts = {"first": TEXTS[:4], "second": TEXTS[4:]}[neighbor.store]
        assert neighbor.snippet in texts[int(neighbor.document)]


def test_a_mapping_names_the_datastores(model, tokenizer, halves):
    memory = Memory(model, {"a": halves[0], "b": halves[1]}, check=False)
    assert memory.names == memory.asked().names == ("a", "b")
    assert memory.over({"c": halves[1]}).names == ("c",)
    assert memory.over(halves).names == ("first", "second")
    _, tokens = generated(model, tokenizer, memory)
    assert {n.store for one in tokens for n in one.neighbors} == {"a"}  # has the nearest


def test_a_trace_tells_folders_of_one_name_apart(tmp_path, model, tokenizer, halves):
    copies = [
        Datastore(shutil.copytree(one.folder, tmp_path / name / "docs"))
        for one, name in zip(halves, "ab", strict=True)
    ]
    _, tokens = generated(model, tokenizer, copies)
    _, expected = generated(model, tokenizer, halves)
    names = {"first": "docs", "second": "docs#2"}
    for one, other in zip(tokens, expected, strict=True):
        assert [n.store for n in one.neighbors] == [names[n.store] for n in other.neighbors]
        assert [d.store for d in one.documents] == [names[d.store] for d in other.documents]
    trace = explain(model, tokenizer, copies, TEXTS[5], lmbda=0.5)
    assert {one.store for token in trace[0].tokens for one in token.documents} == {"docs", "docs#2"}
    mistyped = TEXTS[5].replace("seven", "eight", 1)
    tokens = explain(model, tokenizer, copies, mistyped, lmbda=0.5)[0].tokens
    by_memory = [one.by_memory.document.store for one in tokens if one.by_memory]
    assert by_memory
    assert set(by_memory) <= {"docs", "docs#2"}
