"""The arithmetic in the browser is the library's: votes, mixture, shares, where words turn."""

import json
import math

import pytest
import torch

from knn_logits import Memory, Neighbors, Vote
from knn_logits.distribution import drop_impossible, influences, log_p_knn_of, log_weights, mix
from knn_logits_app.live import MOST_NEIGHBORS, Live

VOCABULARY, ROWS, K = 40, 12, 24


def random_steps(store, metric, seed=0):
    """Neighbors and log p_LM of some rows: padding, equal tokens, and tokens that are forbidden."""
    random = torch.Generator().manual_seed(seed)
    distances = torch.rand(ROWS, K, generator=random) * 30
    if metric != "l2":
        distances = distances / 30
    values = torch.randint(0, 12, (ROWS, K), generator=random)
    ids = torch.randint(0, len(store), (ROWS, K), generator=random)
    ids[3, 10:] = -1
    ids[4] = -1
    padding = math.inf if metric == "l2" else -math.inf
    distances = distances.masked_fill(ids < 0, padding)
    logits = torch.randn(ROWS, VOCABULARY, generator=random) * 2
    logits[5, values[5, 0]] = -1e9
    tokens = logits.argmax(-1)
    tokens[::2] = values[::2, 1]
    return Neighbors(ids, distances, values), torch.log_softmax(logits, -1), tokens


def nearest(neighbors, number, metric):
    """The neighbors of which so many are nearest, as a search for fewer gives them."""
    order = neighbors.distances.argsort(dim=-1, descending=metric != "l2", stable=True)[:, :number]
    return Neighbors(
        neighbors.ids.gather(-1, order),
        neighbors.distances.gather(-1, order),
        neighbors.values.gather(-1, order),
    )


@pytest.fixture(scope="module")
def page(chromium):
    """A page that has the scripts and nothing else."""
    from knn_logits_app import bundle

    context = chromium.new_context()
    page = context.new_page()
    page.add_script_tag(content=bundle.script())
    yield page
    context.close()


@pytest.fixture(params=["l2", "ip"])
def steps(request, model, store):
    """Steps, what the browser gets of them, and their memory."""
    memory = Memory(model, store, check=False, k=K, lmbda=0.3, temperature=5.0)
    memory.retriever.metric = request.param
    neighbors, log_p_lm, tokens = random_steps(store, request.param)
    live = Live(memory)
    # In two parts, as a text that is longer than a batch of queries.
    for part in (slice(0, 5), slice(5, ROWS)):
        vote = Vote(neighbors[part], torch.zeros(0), 0.3, log_p_lm[part])
        live.add(vote, tokens[part].tolist())
    content, documents = live.packed(str, {store.name: "shown"})
    return request.param, neighbors, log_p_lm, tokens, content, documents


MIXED = """([content, ids, settings]) => {
  const live = knnLogits.unpackLive(content);
  return ids.map((id, row) => {
    const found = knnLogits.mixed(live, row, { id }, settings);
    return { ...found, documents: [...found.documents] };
  });
}"""

QUOTED = """([content, id, lmbda]) => {
  const rival = { token: " the passage's", p: 0.01, document: 0, entry: 5 };
  const settings = { lmbda, k: 24, temperature: 5 };
  const found = knnLogits.mixed(knnLogits.unpackLive(content), 0, { id, rival }, settings);
  return [found.meaning === "contradicted", found.rival?.token];
}"""


def test_what_a_quoted_passage_says_stays_under_other_settings(page, steps):
    _, _, _, tokens, content, _ = steps
    asked = [content, int(tokens[0])]
    assert page.evaluate(QUOTED, [*asked, 0.1]) == [True, " the passage's"]
    assert page.evaluate(QUOTED, [*asked, 0.9]) == [True, " the passage's"]
    assert page.evaluate(QUOTED, [*asked, 0.0])[0] is False


@pytest.mark.parametrize("k", [K, 3, 1])
@pytest.mark.parametrize("temperature", [0.05, 5.0, 300.0])
@pytest.mark.parametrize("lmbda", [0.0, 0.3, 0.95, 1.0])
def test_the_browser_computes_what_the_library_does(page, steps, k, temperature, lmbda):
    metric, neighbors, log_p_lm, tokens, content, _ = steps
    settings = {"k": k, "temperature": temperature, "lmbda": lmbda}
    found = page.evaluate(MIXED, [content, tokens.tolist(), settings])
    few = nearest(neighbors, k, metric) if k < K else neighbors
    weights = log_weights(few, metric, temperature)
    weights = drop_impossible(weights, few.values, log_p_lm)
    log_p = mix(log_p_lm, weights, few.values, lmbda)
    log_p_knn = log_p_knn_of(weights, few.values, tokens)
    voted = weights.isfinite().any(-1)
    shares = influences(
        weights, few.values, tokens, log_p.gather(-1, tokens[:, None])[:, 0], voted * lmbda
    )
    for row, one in enumerate(found):
        token = int(tokens[row])
        p = float(log_p[row, token].exp())
        assert one["p"] == pytest.approx(p, rel=1e-4, abs=1e-7)
        assert one["p_lm"] == pytest.approx(float(log_p_lm[row, token].exp()), rel=1e-5)
        assert one["p_knn"] == pytest.approx(float(log_p_knn[row].exp()), rel=1e-4, abs=1e-7)
        if p > 1e-6:
            share = float(shares[row].sum()) if bool(voted[row]) else 0.0
            assert one["share"] == pytest.approx(share, rel=1e-3, abs=1e-5)
            assert sum(part for _, part in one["documents"]) == pytest.approx(share, abs=1e-5)
        best = int(log_p[row].argmax())
        if float(log_p[row, best].exp()) > p + 1e-6:
            assert one["best"]["id"] == best
        else:
            assert one["best"] is None or one["best"]["p"] < p + 1e-6
        for other in one["candidates"]:
            expected = float(log_p[row, other["id"]].exp())
            assert other["p"] == pytest.approx(expected, rel=1e-4, abs=1e-7)


TURNS = """([content, ids, settings]) => {
  const live = knnLogits.unpackLive(content);
  return ids.map((id, row) => knnLogits.turnsOf(live, row, { id }, settings));
}"""


def test_words_turn_where_the_browser_says(page, steps):
    metric, neighbors, log_p_lm, _, content, _ = steps
    weights = log_weights(neighbors, metric, 5.0)
    weights = drop_impossible(weights, neighbors.values, log_p_lm)

    def best(row, lmbda):
        one = slice(row, row + 1)
        mixed = mix(log_p_lm[one], weights[one], neighbors.values[one], lmbda)
        return int(mixed.argmax())

    chosen = [best(row, 0.3) for row in range(ROWS)]
    settings = {"k": K, "temperature": 5.0, "lmbda": 0.3}
    found = page.evaluate(TURNS, [content, chosen, settings])
    turned = 0
    for row, turns in enumerate(found):
        for one in turns:
            edge = one.get("from", one.get("below"))
            sign = 1 if "from" in one else -1
            assert best(row, min(1.0, max(0.0, edge + sign * 1e-3))) == one["id"]
            assert best(row, edge - sign * 1e-3) == chosen[row]
            turned += 1
        if not any("from" in one for one in turns):
            assert best(row, 0.999) == chosen[row]
        if not any("below" in one for one in turns):
            assert best(row, 0.001) == chosen[row]
    assert turned > 3


def test_documents_are_numbered_and_named(steps, store):
    _, neighbors, _, _, content, documents = steps
    assert {one.store for one in documents} == {"shown"}
    known = {store.passage(int(one)).document.id for one in neighbors.ids[neighbors.ids >= 0]}
    assert {one.document for one in documents} == known
    assert content["counts"][3] == 10
    assert content["counts"][4] == 0
    assert len(json.dumps(content)) < ROWS * K * 40


def test_too_many_neighbors_are_not_sent(model, store):
    live = Live(Memory(model, store, check=False))
    live.neighbors = MOST_NEIGHBORS + 1
    assert live.packed(str, {}) is None
