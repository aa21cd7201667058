"""RetoMaton's steps against a derivation of the paper's sections 3 and 4 with sets and loops."""

import numpy as np
import pytest
import torch
from automaton import ByTheBook
from distances import search_steps, weighing
from handmade import make_store, naive_entries

from knn_logits import IndexConfig, KNNConfig, build_index, cluster, remove_documents
from knn_logits.errors import DatastoreError
from knn_logits.mixture.vote import log_p_knn_of
from knn_logits.search.retomaton import RetomatonRetriever
from knn_logits.store.datastore import Datastore

DIM, VOCABULARY = 6, 12
RANDOM = np.random.default_rng(11)
DOCUMENTS = [RANDOM.integers(0, VOCABULARY, RANDOM.integers(1, 60)).tolist() for _ in range(40)]


def make(folder, *, concatenate=False, metric="l2", clusters=None):
    entries = naive_entries(DOCUMENTS, concatenate=concatenate)
    keys = RANDOM.standard_normal((len(entries), DIM)).astype(np.float16)
    store = make_store(folder, DOCUMENTS, keys, concatenate=concatenate, metric=metric)
    return cluster(store, clusters) if clusters else store


def walk(store, steps, seed):
    """States that wander along the corpus and jump at times, and the tokens chosen there."""
    random = np.random.default_rng(seed)
    values = store.values.numpy()
    places = [int(random.integers(len(store)))]
    for _ in range(steps):
        jumps = random.random() < 0.1 or places[-1] + 1 >= len(store)
        places.append(int(random.integers(len(store))) if jumps else places[-1] + 1)
    keys = store.keys(np.array(places)).astype(np.float32)
    states = keys + 0.3 * random.standard_normal(keys.shape).astype(np.float32)
    return torch.from_numpy(states), [int(values[place]) for place in places]


@pytest.mark.parametrize("clusters", [None, 9])
@pytest.mark.parametrize(
    ("metric", "concatenate", "settings"),
    [
        ("l2", False, {}),
        ("l2", False, {"pointer_weight": 1.0}),
        ("l2", True, {"min_knns": 3}),
        ("cosine", False, {"max_knns": 7, "temperature": 0.1}),
        ("ip", True, {"min_knns": 10_000}),
        ("ip", False, {"min_knns": 10_000, "pointer_weight": 0.5}),
    ],
)
def test_steps_are_those_of_the_automaton(tmp_path, metric, concatenate, settings, clusters):
    store = make(tmp_path / "s", concatenate=concatenate, metric=metric, clusters=clusters)
    config = KNNConfig(k=20, retomaton=True, **{"temperature": 2.0, **settings})
    retriever = RetomatonRetriever(store, config)
    book = ByTheBook(store, config)
    states, tokens = walk(store, 100, seed=1)
    ids = torch.tensor([[0, *tokens]])
    searches = 0
    for step in range(100):
        found = search_steps(retriever, states[None, step : step + 1], ids[:, : step + 1])
        expected = book.step(states[step], int(ids[0, step]))
        own = found.ids[0][found.ids[0] >= 0].tolist()
        assert len(own) == len(set(own))
        assert set(own) == set(expected)
        searches += int(found.searched.sum())
        assert searches == book.searches
        weights = weighing(retriever).log_weights(found)
        p = log_p_knn_of(weights, found.values, ids[:, step + 1]).exp()
        assert float(p) == pytest.approx(book.p_knn(tokens[step]), abs=1e-6)
    if settings.get("min_knns", 1) < 100:
        assert 0 < searches < 80
    else:
        assert searches == 100


def by_id(ids, distances):
    """Neighbors and their distances, in the order of their ids."""
    there = ids >= 0
    order = torch.argsort(ids[there])
    return ids[there][order].numpy(), distances[there][order].numpy()


def test_rows_and_positions_at_once_are_rows_and_positions_alone(tmp_path):
    store = make(tmp_path / "s", clusters=9)
    config = KNNConfig(k=20, retomaton=True)
    walks = [walk(store, 60, seed=seed) for seed in range(5)]
    states = torch.stack([one for one, _ in walks])[:, :60]
    ids = torch.tensor([[7, *tokens] for _, tokens in walks])
    whole = search_steps(RetomatonRetriever(store, config), states, ids[:, :60])
    for row in range(5):
        alone = RetomatonRetriever(store, config)
        for step in range(60):
            one = search_steps(
                alone, states[row : row + 1, step : step + 1], ids[row : row + 1, : step + 1]
            )
            place = step * 5 + row
            ids_alone, far_alone = by_id(one.ids[0], one.distances[0])
            ids_both, far_both = by_id(whole.ids[place], whole.distances[place])
            np.testing.assert_array_equal(ids_alone, ids_both)
            np.testing.assert_allclose(far_alone, far_both, atol=1e-5, rtol=1e-6)
            assert bool(one.searched[0]) == bool(whole.searched[place])


def test_beams_that_change_places_take_their_pointers_along(tmp_path):
    store = make(tmp_path / "s")
    config = KNNConfig(k=20, retomaton=True)
    walks = [walk(store, 30, seed=seed) for seed in range(4)]
    states = torch.stack([one for one, _ in walks])
    ids = torch.tensor([[seed, *tokens] for seed, (_, tokens) in enumerate(walks)])
    straight, moved = (RetomatonRetriever(store, config) for _ in range(2))
    random = np.random.default_rng(0)
    for step in range(30):
        expected = search_steps(straight, states[:, step : step + 1], ids[:, : step + 1])
        rows = torch.from_numpy(random.permutation(4))
        found = search_steps(moved, states[rows, step : step + 1], ids[rows, : step + 1])
        for place, row in enumerate(rows.tolist()):
            assert set(found.ids[place].tolist()) == set(expected.ids[row].tolist())
            assert bool(found.searched[place]) == bool(expected.searched[row])


def test_a_rejected_draft_leaves_no_pointers(tmp_path):
    store = make(tmp_path / "s")
    config = KNNConfig(k=20, retomaton=True)
    states, tokens = walk(store, 12, seed=3)
    ids = torch.tensor([[0, *tokens]])
    plain, drafted = (RetomatonRetriever(store, config) for _ in range(2))
    for step in range(6):
        last = search_steps(plain, states[None, step : step + 1], ids[:, : step + 1])
    wrong = torch.cat([ids[:, :3], torch.tensor([[97, 98]])], dim=-1)
    search_steps(drafted, states[None, :5], wrong)
    for step in range(3, 6):
        found = search_steps(drafted, states[None, step : step + 1], ids[:, : step + 1])
    assert set(found.ids[0].tolist()) == set(last.ids[0].tolist())


def test_removed_entries_are_not_pointed_to(tmp_path):
    store = remove_documents(make(tmp_path / "s", clusters=9), [str(n) for n in range(0, 40, 2)])
    config = KNNConfig(k=20, retomaton=True, temperature=2.0)
    retriever, book = RetomatonRetriever(store, config), ByTheBook(store, config)
    states, tokens = walk(store, 100, seed=5)
    ids = torch.tensor([[0, *tokens]])
    gone = set(store.removed_entries.tolist())
    for step in range(100):
        found = search_steps(retriever, states[None, step : step + 1], ids[:, : step + 1])
        own = set(found.ids[0].tolist()) - {-1}
        assert own == set(book.step(states[step], int(ids[0, step])))
        assert not own & gone


def test_pointers_need_the_stored_keys(tmp_path):
    store = build_index(make(tmp_path / "s"), IndexConfig("IVF8,Flat", nprobe=8))
    files = tuple(one for one in store.manifest.files if not one.name.startswith("keys"))
    bare = Datastore.unfinished(store.folder, store.manifest.model_copy(update={"files": files}))
    with pytest.raises(DatastoreError, match="remove --retomaton"):
        RetomatonRetriever(bare, KNNConfig(retomaton=True))
