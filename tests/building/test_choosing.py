"""The kind of index that is chosen for a budget or a recall, and what is refused."""

import json
import shutil

import numpy as np
import pytest
from folders import one_line
from handmade import make_store

from knn_logits import ConfigError, Datastore, IndexConfig, build_index
from knn_logits.building import indexing
from knn_logits.building.choosing import (
    chosen_factory,
    kinds_for,
    measured_kinds,
    table,
)
from knn_logits.building.indexing import make_index
from knn_logits.building.recall import recall, sample_truth
from knn_logits.settings.values import read_bytes

DIM, ENTRIES = 16, 10_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Keys in clusters, as hidden states are."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((64, DIM)) * 3
    keys = centers[rng.integers(64, size=ENTRIES)] + rng.standard_normal((ENTRIES, DIM))
    folder = tmp_path_factory.mktemp("stores") / "s"
    make_store(folder, [[1] * (ENTRIES + 1)], keys.astype("f2"))
    return folder


@pytest.fixture(scope="module")
def tried(folder):
    return measured_kinds(Datastore(folder))


def test_each_kind_is_measured(tried):
    assert len(tried) == len(kinds_for(DIM, 128))
    assert [one.bytes for one in tried] == sorted(one.bytes for one in tried)
    by_kind = {one.factory.partition(",")[2]: one for one in tried}
    # 8 bytes an entry for its id, 16 for its codes, and half of those.
    assert by_kind["SQ8"].bytes == pytest.approx(ENTRIES * 24, rel=0.2)
    assert by_kind["SQ4"].bytes == pytest.approx(ENTRIES * 16, rel=0.25)
    assert by_kind["SQ8"].recall > 0.95 > by_kind["SQ4"].recall
    assert len(table(tried)) == len(tried) + 1
    assert all(one.milliseconds > 0 for one in tried)


def test_the_same_seed_gives_the_same_choice(folder, tried):
    again = measured_kinds(Datastore(folder))
    assert [(a.factory, a.bytes, a.recall) for a in again] == [
        (one.factory, one.bytes, one.recall) for one in tried
    ]


def test_within_a_budget_the_one_that_finds_most(tried):
    for budget in (one.bytes for one in tried):
        factory = chosen_factory(tried, IndexConfig(budget=budget))
        best = max(one.recall for one in tried if one.bytes <= budget)
        assert next(one for one in tried if one.factory == factory).recall == best


def test_for_a_recall_the_smallest_that_finds_enough(tried):
    for wanted in (one.recall for one in tried):
        factory = chosen_factory(tried, IndexConfig(target_recall=wanted))
        least = min(one.bytes for one in tried if one.recall >= wanted)
        assert next(one for one in tried if one.factory == factory).bytes == least


def test_only_what_fits_is_measured(folder, tried, monkeypatch):
    budget = tried[1].bytes
    fitting = measured_kinds(Datastore(folder), IndexConfig(budget=budget))
    assert [one.factory for one in fitting] == [one.factory for one in tried[:2]]
    monkeypatch.setattr("knn_logits.building.choosing.training_sample", None)  # nothing is built
    with pytest.raises(ConfigError, match="no index type fits in 1,000 bytes"):
        measured_kinds(Datastore(folder), IndexConfig(budget=1000))


def test_what_cannot_be_is_refused(tried):
    with pytest.raises(ConfigError, match="no index type fits in 1,000 bytes; the smallest") as one:
        chosen_factory(tried, IndexConfig(budget=1000))
    one_line(one)
    with pytest.raises(ConfigError, match=r"reaches a recall of 100\.0%; the best") as one:
        chosen_factory(tried, IndexConfig(budget=tried[0].bytes, target_recall=1.0))
    one_line(one)


def test_the_index_is_built_and_the_table_kept(folder, tried, tmp_path, run):

    copy = shutil.copytree(folder, tmp_path / "s")
    budget = next(one for one in tried if one.factory.endswith("SQ4")).bytes
    result = run.good("index", copy, "--budget", str(budget), "--json")
    answer = json.loads(result.out)
    assert len(answer["tried"]) == sum(one.bytes <= budget for one in tried)
    done = Datastore(copy, full=True).manifest
    assert done.index.factory == answer["index"]
    assert [one.factory for one in done.index.tried] == [one["factory"] for one in answer["tried"]]
    assert sum(one.bytes for one in done.files if "index" in one.name) <= 1.1 * budget
    plain = build_index(copy, IndexConfig("IVF4,SQ8"))
    assert plain.manifest.index.tried is None
    assert b"tried" not in (copy / "datastore.json").read_bytes()


def test_a_kind_that_finds_less_among_all_entries_is_passed_over(folder, tried, tmp_path, caplog):
    """The sample promises more of the smallest kind than it holds."""
    copy = shutil.copytree(folder, tmp_path / "s")
    promised = (tried[0].model_copy(update={"recall": 0.999}), *tried[1:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "measured_kinds", lambda *_: promised)
        done = build_index(copy, IndexConfig(target_recall=0.95)).manifest.index
    assert done.recall.value >= 0.95
    assert done.factory != tried[0].factory
    assert f"{tried[0].factory} has a recall of" in caplog.text
    kept = {one.factory: one.recall for one in done.tried}
    assert kept[tried[0].factory] < 0.95
    nothing = tuple(one.model_copy(update={"recall": 0.5}) for one in tried[1:])
    before = (copy / "datastore.json").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "measured_kinds", lambda *_: (promised[0], *nothing))
        with pytest.raises(ConfigError, match=r"reaches a recall of 95\.0%; the best"):
            build_index(copy, IndexConfig(target_recall=0.95))
    assert (copy / "datastore.json").read_bytes() == before


def test_lists_that_bring_nothing_are_not_visited(folder):
    """Codes of few bits never find 90%, and then 128 lists find no more than some do."""
    store = Datastore(folder)
    factory = "IVF128,PQ2x4"
    index, record = make_index(store, IndexConfig(factory))
    assert record.recall.value < 0.9
    truth = sample_truth(store, 0)
    found = {}
    for nprobe in (1, 2, 4, 8, 16, 32, 64, 128):
        index.nprobe = nprobe
        found[nprobe] = recall(index, truth)
    best = max(found.values())
    assert found[record.nprobe] >= best - 0.005
    assert all(value < best - 0.005 for nprobe, value in found.items() if nprobe < record.nprobe)
    assert record.nprobe < 128


@pytest.mark.parametrize(
    "settings",
    [
        {"budget": 0},
        {"budget": 1.5},
        {"target_recall": 0.0},
        {"target_recall": 1.1},
        {"target_recall": float("nan")},
        {"budget": 10, "factory": "IVF4,SQ8"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError) as one:
        IndexConfig(**settings)
    one_line(one)


def test_too_few_entries_are_refused(tmp_path):
    make_store(tmp_path / "s", [[1, 2, 3]])
    with pytest.raises(ConfigError, match="2 entries are too few to compare"):
        build_index(tmp_path / "s", IndexConfig(target_recall=0.9))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("4GB", 4 * 10**9),
        ("4g", 4 * 10**9),
        ("500 MB", 5 * 10**8),
        ("1.5GiB", 3 << 29),
        ("2kib", 2048),
        ("1000", 1000),
        ("7b", 7),
    ],
)
def test_sizes(size, expected):
    assert read_bytes(size) == expected


@pytest.mark.parametrize("size", ["", "GB", "-4GB", "0", "4 apples", "1e9", "0.1", "4GBB"])
def test_what_is_no_size(size):
    with pytest.raises(ConfigError, match="is not a size"):
        read_bytes(size)
