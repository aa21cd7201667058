"""What a datastore will need by kind of index, and which machine would do."""

import numpy as np
import pytest
import torch

from knn_logits import Datastore, IndexConfig, WindowConfig
from knn_logits.building.estimate import estimate_build, forecast
from knn_logits.building.needs import usual_kinds
from knn_logits.building.sizes import (
    Extent,
    building_bytes,
    gpu_bytes,
    gpu_for,
    is_enough,
    machine_for,
    opening_bytes,
    resident_bytes,
    store_bytes,
    this_machine,
)
from knn_logits.building.timing import query_seconds
from knn_logits.errors import ConfigError
from knn_logits.index import plain
from knn_logits.index.faiss_backend import build_faiss

GIB = 1 << 30


def extent(entries=10_000, dim=32, **changed):
    given = {"tokens": entries + 1, "documents": 1, "dtype": "float16", "metric": "l2"}
    return Extent(entries=entries, dim=dim, table_bytes=0, **{**given, **changed})


def test_an_open_index_holds_what_is_said():
    keys = np.random.default_rng(0).standard_normal((600, 32), dtype=np.float32)
    held = {}
    for factory in ("IVF8,SQ8", "IVF8,PQ8x4", "IVF8,Flat"):
        arrays = plain.to_arrays(build_faiss(factory, 32, "l2", keys, [keys]))
        size = sum(array.nbytes for array in arrays.values())
        held[factory] = resident_bytes(extent(600), factory)
        assert held[factory] == pytest.approx(size + 4 * 600, rel=0.03)
        assert resident_bytes(extent(600), factory) < opening_bytes(extent(600), factory)
    assert held["IVF8,PQ8x4"] < held["IVF8,SQ8"] < held["IVF8,Flat"]
    assert resident_bytes(extent(600), "exact") == 600 * (4 * 33 + 4)


def test_learning_may_take_more_memory_than_the_index():
    large = extent(10**9, 4096)
    learning = 2 * 4 * 4096 * 64 * 65536
    assert building_bytes(large, "IVF65536,RaBitQ") > learning
    assert building_bytes(large, "IVF65536,RaBitQ", train_size=1000) < 2 * store_bytes(
        large, IndexConfig("IVF65536,RaBitQ")
    )


def test_a_gpu_takes_only_some_kinds():
    assert gpu_bytes(extent(), "IVF64,RaBitQ") is None
    assert gpu_bytes(extent(), "HNSW32") is None
    for factory in ("exact", "IVF64,SQ8", "IVF64,PQ8", "IVF64,Flat"):
        assert gpu_bytes(extent(), factory) >= 10_000 * 8


def test_queries_take_longer_in_longer_lists_and_for_more_lists():
    def seconds(entries, nprobe):
        [found] = query_seconds("IVF64,SQ8", entries, 32, "l2", k=16, rows=[8], nprobe=nprobe)
        return found

    assert seconds(10**6, 8) > 3 * seconds(10**4, 8)
    assert seconds(10**6, 32) > seconds(10**6, 1)
    # Lists that are too long for the small index are scaled.
    assert seconds(10**10, 8) > 100 * seconds(10**7, 8)


def test_kinds_without_a_rule_get_no_time():
    assert query_seconds("HNSW32", 1000, 32, "l2", k=4, rows=[1]) is None
    exact = query_seconds("exact", 1000, 32, "cosine", k=4, rows=[1, 8])
    assert len(exact) == 2
    assert min(exact) > 0.0


def test_machines():
    assert machine_for(5 * GIB, 10**8) == "8 GB of memory, 1 GB of disk"
    assert machine_for(8 * GIB, 3 * 10**12) == "16 GB of memory, 3 TB of disk"
    assert machine_for(2000 * GIB, 25 * 10**12).startswith("5 machines of 512 GB, 25 TB")
    assert gpu_for(30 * GIB) == "48 GB"
    assert gpu_for(300 * GIB) == "5 × 80 GB"
    assert is_enough(GIB, 10, (2 * GIB, 10))
    assert not is_enough(2 * GIB, 10, (2 * GIB, 10))
    assert not is_enough(GIB, 11, (2 * GIB, 10))


def test_this_machine_is_asked_about_a_folder_that_is_not_there(tmp_path):
    memory, free = this_machine(tmp_path / "none" / "such")
    assert memory > 0
    assert free > 0


def test_a_number_of_tokens_is_enough(model, tokenizer):
    found = forecast(
        50_000, model=model, tokenizer=tokenizer, window=WindowConfig(64, 32), calibrate=False
    )
    assert (found.tokens, found.entries, found.dim) == (50_000, 49_999, 32)
    assert [one.index for one in found.needs if one.chosen] == [found.needs[0].index]
    assert {one.index for one in found.needs} == set(usual_kinds(49_999, 32))
    assert all(one.seconds > 0.0 for one in found.needs)


def test_neither_a_model_nor_its_layers(monkeypatch):
    # What this machine does meanwhile must not matter.
    monkeypatch.setattr("knn_logits.building.timing.fastest", lambda _: 1e-4)
    monkeypatch.setattr("knn_logits.building.estimate.process_bytes", lambda: GIB)
    bare = forecast(10**5, dim=64, compare=False)
    assert bare.seconds is None
    assert bare.needs[0].milliseconds > 0.0
    one, two = (forecast(10**5, dim=64, layers=layers, compare=False) for layers in (1, 400))
    assert two.seconds > one.seconds
    assert two.needs[0].memory - one.needs[0].memory > 300 * 12 * 64 * 64 * 2
    with pytest.raises(ConfigError, match="dim"):
        forecast(10**5)
    with pytest.raises(ConfigError, match="tokens"):
        forecast(1, dim=64)


def test_the_rules_of_a_corpus_and_of_a_number_agree(model, tokenizer, store):
    assert isinstance(store, Datastore)
    texts = ["word " * 400]
    window = WindowConfig(64, 32)
    counted = estimate_build(model, tokenizer, texts, window=window, compare=True)
    forecasted = forecast(counted.tokens, model=model, tokenizer=tokenizer, window=window)
    assert [one.index for one in counted.needs] == [one.index for one in forecasted.needs]
    for one, other in zip(counted.needs, forecasted.needs, strict=True):
        # A corpus has a table of documents as well.
        assert other.bytes < one.bytes < other.bytes + 5000
    assert torch.get_num_threads()
