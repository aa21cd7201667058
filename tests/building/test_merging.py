"""Entries that stand for others: which they are, how they vote, what later jobs make of them."""

import json
import math

import numpy as np
import pytest
import torch
from distances import weighing
from folders import contents, one_line, refit, with_manifest
from handmade import make_store, naive_entries

from knn_logits import (
    ConfigError,
    DamagedError,
    Datastore,
    DatastoreError,
    Document,
    IndexConfig,
    KNNConfig,
    Retriever,
    add_documents,
    build_datastore,
    build_index,
    compact,
    merge_entries,
    remove_documents,
    sync_documents,
)
from knn_logits.building.adding import extended_index
from knn_logits.index.opening import open_index, present_entries
from knn_logits.mixture.distribution import influences, log_p_knn_of, mix
from knn_logits.progress import no_progress
from knn_logits.search.retomaton import RetomatonRetriever

RANDOM = np.random.default_rng(3)
# Few tokens, so that each document has many of a kind, but never more than are paired.
DOCUMENTS = [RANDOM.integers(0, 12, length).tolist() for length in (70, 1, 64, 50, 81, 66)]
ENTRIES = naive_entries(DOCUMENTS)
KINDS = ["exact", "IVF4,Flat"]


def make(folder, factory="exact", *, same=False, metric="l2", **settings):
    """With `same`, the keys of one token in one document are equal."""
    entries = naive_entries(DOCUMENTS, concatenate=settings.get("concatenate", False))
    keys = np.random.default_rng(4).standard_normal((len(entries), 8)).astype(np.float16)
    if same:
        kinds = {}
        for place, (_, document, token) in enumerate(entries):
            keys[place] = kinds.setdefault((document, token), keys[place].copy())
    store = make_store(folder, DOCUMENTS, keys, shard_bytes=1000, metric=metric, **settings)
    return build_index(store, IndexConfig(factory, nprobe=4 if "IVF" in factory else None))


def retriever(store, k=None, **settings):
    return Retriever(store, KNNConfig(k=k or len(store), temperature=3.0, **settings))


def p_knn(store, queries, **settings):
    """p_kNN of every token, float64 [rows, 12]."""
    asked = retriever(store, **settings)
    found = asked.search(queries)
    weights = weighing(asked).log_weights(found)
    tokens = torch.arange(12).expand(len(queries), -1)
    return log_p_knn_of(weights, found.values, tokens).double().exp()


def queries_of(rows=20):
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(5))


def plainly_merged(store, keep):
    """The same by all pairs, one after another."""
    keys = store.keys(np.arange(len(store))).astype(np.float64)
    begins = {ENTRIES.index(next(e for e in ENTRIES if e[1] == d)) for d in {e[1] for e in ENTRIES}}
    pairs = sorted(
        (float(((keys[one] - keys[other]) ** 2).sum()), one, other)
        for one in range(len(keys))
        for other in range(one)
        if ENTRIES[one][1:] == ENTRIES[other][1:] and not {one, other} & begins
    )
    members = {one: [one] for one in range(len(keys))}
    left = len(keys) - round(keep * len(keys))
    for _, one, other in pairs:
        if left and one in members and other in members:
            if (len(members[other]), -other) > (len(members[one]), -one):
                one, other = other, one
            members[one] += members.pop(other)
            left -= 1
    assert not left
    into = np.empty(len(keys), int)
    for one, some in members.items():
        into[some] = one
    return into


@pytest.mark.parametrize("keep", [0.9, 0.5])
def test_the_nearest_of_one_token_and_document_are_merged(tmp_path, keep):
    store = make(tmp_path / "s")
    done = merge_entries(store, keep)
    assert done.merged.tolist() == plainly_merged(store, keep).tolist()
    assert len(done) == len(store)
    assert len(done) - len(done.merged_away) == round(keep * len(store))
    assert Datastore(store.folder, full=True).merged.tolist() == done.merged.tolist()


@pytest.mark.parametrize("factory", KINDS)
@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_an_entry_votes_for_all_that_it_stands_for(tmp_path, factory, metric):
    store = merge_entries(make(tmp_path / "s", factory, metric=metric), 0.6)
    into = store.merged
    kept = np.flatnonzero(into == np.arange(len(into)))
    keys = store.keys(kept).astype(np.float64)
    counts = np.array([(into == one).sum() for one in kept])
    values = np.array([ENTRIES[one][2] for one in kept])
    queries = queries_of()
    for row, query in enumerate(queries.double().numpy()):
        near = -((keys - query) ** 2).sum(axis=1) if metric == "l2" else keys @ query
        if metric == "cosine":
            near = near / np.linalg.norm(keys, axis=1) / np.linalg.norm(query)
        weights = counts * np.exp((near - near.max()) / 3.0)
        expected = np.bincount(values, weights / weights.sum(), minlength=12)
        found = p_knn(store, queries[row : row + 1])[0]
        assert found.numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("factory", KINDS)
def test_merging_equal_keys_changes_no_vote_and_no_documents_share(tmp_path, factory):
    store = make(tmp_path / "s", factory, same=True)
    queries = queries_of()
    own = np.array([one[1] for one in ENTRIES])

    def shares(some):
        """Each document's share in the probability of the likeliest token."""
        asked = retriever(some)
        found = asked.search(queries)
        weights = weighing(asked).log_weights(found)
        log_p_lm = torch.full((len(queries), 12), -math.log(12))
        log_p = mix(log_p_lm, weights, found.values, 0.5)
        chosen = log_p.argmax(-1)
        part = influences(
            weights, found.values, chosen, log_p.amax(-1), torch.full((len(queries),), 0.5)
        )
        table = np.zeros((len(queries), len(DOCUMENTS)))
        for row in range(len(queries)):
            there = found.mask[row].numpy()
            np.add.at(table[row], own[found.ids[row].numpy()[there]], part[row].numpy()[there])
        return table

    before, documents = p_knn(store, queries), shares(store)
    without = p_knn(store, queries, exclude=("0", "3"))
    merged = merge_entries(store, 0.4)
    assert torch.allclose(p_knn(merged, queries), before, atol=1e-5)
    assert shares(merged) == pytest.approx(documents, abs=1e-5)
    assert documents.sum(axis=1).min() > 0.2
    assert torch.allclose(p_knn(merged, queries, exclude=("0", "3")), without, atol=1e-5)
    smaller = remove_documents(merged, ["0", "3"])
    assert torch.allclose(p_knn(smaller, queries), without, atol=1e-5)
    packed = compact(smaller)
    assert torch.allclose(p_knn(packed, queries), without, atol=1e-5)
    assert len(packed.merged_away)
    assert Datastore(packed.folder, full=True).merged is not None


@pytest.mark.parametrize("factory", KINDS)
def test_only_entries_that_stay_are_found(tmp_path, factory):
    store = merge_entries(make(tmp_path / "s", factory), 0.5)
    kept = present_entries(store)
    found = retriever(store).search(queries_of())
    for row, mask in zip(found.ids.tolist(), found.mask.tolist(), strict=True):
        there = [one for one, shown in zip(row, mask, strict=True) if shown]
        assert sorted(there) == kept.tolist()
    index = open_index(store)
    assert index.size == len(kept)
    assert index.reconstruct(kept[::-7].copy()).numpy() == pytest.approx(
        store.keys(kept[::-7]).astype(np.float32), abs=1e-5
    )
    if factory != "exact":
        assert store.index_arrays()["ids"].shape == kept.shape
        assert store.manifest.index.recall.value == 1.0


def test_a_concatenated_text_is_compacted_as_well(tmp_path):
    store = merge_entries(make(tmp_path / "s", concatenate=True), 0.5)
    packed = compact(remove_documents(store, ["0"]))
    into = Datastore(packed.folder, full=True).merged
    assert len(packed.merged_away)
    assert np.array_equal(packed.values.numpy()[into], packed.values.numpy())


def test_merging_is_undone(tmp_path):
    store = make(tmp_path / "s", "IVF4,SQ8")
    before = store.index_arrays()
    again = merge_entries(merge_entries(store, 0.5), 1)
    assert again.merged is None
    assert all(np.array_equal(before[name], one) for name, one in again.index_arrays().items())
    assert b"merged" not in b"".join(contents(store.folder).values())


def test_another_share_begins_with_all_entries(tmp_path):
    one, other = make(tmp_path / "a", "IVF4,SQ8"), make(tmp_path / "b", "IVF4,SQ8")
    twice, once = merge_entries(merge_entries(one, 0.5), 0.8), merge_entries(other, 0.8)
    assert np.array_equal(twice.merged, once.merged)
    assert np.array_equal(twice.index_arrays()["codes"], once.index_arrays()["codes"])


def test_another_index_keeps_the_merging(tmp_path):
    store = build_index(merge_entries(make(tmp_path / "s"), 0.5), "IVF4,SQ8")
    assert len(store.index_arrays()["ids"]) == len(store) - len(store.merged_away)
    assert retriever(store).search(queries_of()).log_counts is not None


@pytest.mark.parametrize("factory", KINDS)
def test_an_index_that_is_extended_holds_all_entries_again(tmp_path, factory):
    """`add` leaves the file of merged entries out, so the index must hold what it held before."""
    store = merge_entries(make(tmp_path / "s", factory), 0.5)
    manifest = store.manifest.model_copy(
        update={"files": tuple(one for one in store.manifest.files if "merged" not in one.name)}
    )
    grown = Datastore.unfinished(store.folder, manifest)
    index, _ = extended_index(store, grown, None, no_progress)
    assert index.size == len(store)


def test_text_that_is_added_undoes_it(model, tokenizer, tmp_path, caplog):
    words = ["crane", "winch", "harbour", "lamp", "oil"]
    texts = [" ".join(RANDOM.choice(words, 60)) for _ in range(6)]
    store = build_datastore(model, tokenizer, texts[:4], tmp_path / "s", index="IVF2,Flat", k=8)
    merged = merge_entries(store, 0.95)
    assert len(merged.merged_away)
    grown = add_documents(model, tokenizer, merged, texts[4:6])
    assert grown.merged is None
    assert "are no longer merged" in caplog.text
    assert len(grown.index_arrays()["ids"]) == len(grown) > len(store)


def test_documents_that_a_sync_removes_are_left_out(model, tokenizer, tmp_path):
    words = ["crane", "winch", "harbour", "lamp", "oil"]
    texts = [Document(" ".join(RANDOM.choice(words, 60)), str(n)) for n in range(4)]
    store = build_datastore(model, tokenizer, texts, tmp_path / "s", index="IVF2,Flat", k=8)
    merge_entries(store, 0.95)
    done = sync_documents(model, tokenizer, store.folder, texts[1:]).datastore
    assert done.merged is not None
    found = retriever(Datastore(store.folder, full=True)).search(
        torch.from_numpy(store.keys(np.arange(40)).astype(np.float32))
    )
    first = int(done.documents.length[0]) - 1
    assert int(found.ids[found.mask].min()) >= first


def test_pointers_lead_to_entries_that_are_not_in_the_index(tmp_path):
    store = merge_entries(make(tmp_path / "s"), 0.5)
    config = KNNConfig(k=4, retomaton=True, temperature=3.0)
    asked = RetomatonRetriever(store, config)
    kept = present_entries(store)
    most = kept[np.argmax(np.bincount(store.merged)[kept])]
    count = int((store.merged == most).sum())
    assert count > 1
    states = torch.from_numpy(store.keys(np.arange(20)).astype(np.float32))
    text = torch.tensor([DOCUMENTS[0][:21]])
    found = asked.search_steps(states[None], text)
    assert torch.isfinite(weighing(asked).log_weights(found).exp()).all()
    assert found.log_counts[found.ids == most].exp().round().int().tolist() == [count] * int(
        (found.ids == most).sum()
    )
    assert np.isin(found.ids.numpy(), store.merged_away).any()
    with pytest.raises(DatastoreError, match="lacks vectors") as caught:
        RetomatonRetriever(store, config.with_given(pointer_distances="index"))
    one_line(caught)


@pytest.mark.parametrize("keep", [0, -1, 1.1, float("nan"), "half", True])
def test_shares_out_of_range_are_refused(tmp_path, keep):
    store = make(tmp_path / "s")
    before = contents(store.folder)
    with pytest.raises(ConfigError, match="keep must be") as caught:
        merge_entries(store, keep)
    one_line(caught)
    assert contents(store.folder) == before


def test_what_cannot_be_merged_is_refused(tmp_path):
    store = make(tmp_path / "s")
    before = contents(store.folder)
    with pytest.raises(ConfigError, match=r"at least 0\.\d\d of them remain") as caught:
        merge_entries(store, 0.01)
    least = float(one_line(caught).split("--keep ")[1].split()[0])
    assert contents(store.folder) == before
    assert merge_entries(store, least).merged is not None
    for factory in ("HNSW4", "Flat"):
        with pytest.raises(ConfigError, match="cannot exclude entries") as caught:
            build_index(store, factory)
        one_line(caught)
        other = make(tmp_path / factory, factory)
        with pytest.raises(ConfigError, match="cannot exclude entries"):
            merge_entries(other, 0.9)
        assert Datastore(other.folder).merged is None
    bare = make_store(tmp_path / "bare", DOCUMENTS, with_keys=False)
    with pytest.raises(DatastoreError, match="`merge` needs them: fetch them") as caught:
        merge_entries(bare)
    one_line(caught)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda into: into + 10_000, "holds the number"),
        (lambda into: into[:-1], r"the manifest says int32 \(326,\)"),
        (lambda into: np.roll(into, 1), "stands for"),
        (lambda into: np.zeros_like(into), "another token"),
    ],
    ids=["range", "shape", "chain", "token"],
)
def test_entries_that_cannot_stand_for_others_are_refused(tmp_path, change, problem):
    store = merge_entries(make(tmp_path / "s"), 0.5)
    path = store.folder / store.manifest.file("merged").name
    np.save(path, change(np.array(store.merged)).astype(np.int32))
    refit(store.folder)
    with pytest.raises(DamagedError, match=problem) as caught:
        Datastore(store.folder)
    one_line(caught)


def test_an_entry_of_another_document_is_refused(tmp_path):
    store = make_store(tmp_path / "s", [[1, 2, 2], [1, 2, 2]])
    merged = merge_entries(make_store(tmp_path / "t", [[1, 2, 2, 2], [1, 2, 2]]), 0.9)
    path = merged.folder / merged.manifest.file("merged").name
    np.save(path, np.array([0, 1, 2, 2, 2], np.int32))
    refit(merged.folder)
    with pytest.raises(DamagedError, match="another document"):
        Datastore(merged.folder)
    assert store.merged is None


def test_an_index_of_other_entries_is_refused(tmp_path):
    store = merge_entries(make(tmp_path / "s", "IVF4,Flat"), 0.5)
    path = store.folder / store.manifest.file("merged").name
    np.save(path, merge_entries(make(tmp_path / "t", "IVF4,Flat"), 0.6).merged)
    refit(store.folder)
    with pytest.raises(DamagedError, match="is not a"):
        open_index(Datastore(store.folder))


@pytest.mark.parametrize("keep", [0.5, 1.0])
def test_a_strangers_index_is_not_built_again_unchecked(tmp_path, keep):
    store = make(tmp_path / "s")
    index = store.manifest.index.model_copy(update={"factory": "IVF20000000,Flat"})
    with_manifest(store, index=index)
    before = contents(store.folder)
    with pytest.raises(DamagedError, match=r"building the index .* is refused"):
        merge_entries(store.folder, keep)
    assert contents(store.folder) == before


def test_the_command_line(tmp_path, run):
    folder = make(tmp_path / "s", "IVF4,SQ8").folder
    result = run.good("merge", folder, "--keep", "0.5", "--json")
    answer = json.loads(result.out)
    store = Datastore(folder)
    assert answer["entries"] == len(store) == 2 * answer["kept"] + len(store) % 2
    assert answer["index"] == "IVF4,SQ8"
    assert "in the index" in run("info", folder).out
    assert "and stand for the others" in run("merge", folder).out
    assert f"all {len(store):,} entries are in the index" in run("merge", folder, "--keep", 1).out
    failed = run.refused("merge", folder, "--keep", "2")
    assert failed.err.count("\n") == 1
