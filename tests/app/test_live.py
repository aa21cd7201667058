"""The arithmetic in the browser is the library's: votes, mixture, shares, where words turn."""

import itertools
import json
import math
import shutil

import pytest
import torch
from conftest import TEXTS
from gate_cases import random_adaptive
from tuned import write_settings

from app.answers import Node
from app.conftest import expect, serving
from app.test_journeys import slide
from knn_logits import Datastore, Memory, explain
from knn_logits.mixture.vote import (
    Vote,
    drop_impossible,
    influences,
    log_p_knn_of,
    log_weights,
    mix,
)
from knn_logits.search.neighbors import Neighbors
from knn_logits_app.library import Library
from knn_logits_app.live import Live

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
    return (
        Neighbors.from_distances(ids, distances, values, metric),
        torch.log_softmax(logits, -1),
        tokens,
    )


def nearest(neighbors, number, metric):
    """The nearest `number` of the neighbors, as a search for fewer gives them."""
    order = neighbors.nearness.argsort(dim=-1, descending=True, stable=True)[:, :number]
    return neighbors.columns(order)


@pytest.fixture(scope="module")
def page():
    """The scripts, and nothing else."""
    return Node()


@pytest.fixture(scope="module", params=["l2", "ip"])
def steps(request, model, store):
    """Steps, what the browser gets of them, and their memory."""
    memory = Memory(model, {"shown": store}, check=False, k=K, lmbda=0.3, temperature=5.0)
    memory.retriever.metric = request.param
    neighbors, log_p_lm, tokens = random_steps(store, request.param)
    live = Live(memory)
    # In two parts, as a text that is longer than a batch of queries.
    for part in (slice(0, 5), slice(5, ROWS)):
        vote = Vote(neighbors[part], torch.zeros(0), 0.3, log_p_lm[part])
        live.add(vote, tokens[part].tolist())
    content, documents = live.packed(str)
    return request.param, neighbors, log_p_lm, tokens, content, documents


MIXED = """([content, ids, ...several]) => {
  const live = knnLogits.unpackLive(content);
  return several.map((settings) => ids.map((id, row) => {
    const found = knnLogits.mixed(live, row, { id }, settings);
    return { ...found, documents: [...found.documents] };
  }));
}"""

ALL = list(itertools.product([K, 3, 1], [0.05, 5.0, 300.0], [0.0, 0.3, 0.95, 1.0]))


def test_the_browser_computes_what_the_library_does(page, steps):
    metric, neighbors, log_p_lm, tokens, content, _ = steps
    several = [dict(zip(("k", "temperature", "lmbda"), one, strict=True)) for one in ALL]
    answers = page.evaluate(MIXED, [content, tokens.tolist(), *several])
    for (k, temperature, lmbda), found in zip(ALL, answers, strict=True):
        compare(found, metric, neighbors, log_p_lm, tokens, k, temperature, lmbda)


def compare(found, metric, neighbors, log_p_lm, tokens, k, temperature, lmbda):
    few = nearest(neighbors, k, metric) if k < K else neighbors
    weights = log_weights(few, temperature)
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
    _metric, neighbors, log_p_lm, _, content, _ = steps
    weights = log_weights(neighbors, 5.0)
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


@pytest.fixture(scope="module")
def weighed(build, tmp_path_factory):
    """A datastore whose entries count more for shared tokens."""
    folder = tmp_path_factory.mktemp("weighed") / "s"
    documents = [f"{one} {two}" for one in TEXTS[:4] for two in TEXTS[:4]]
    return build(documents, folder, index="exact", suffix_weight=3.0, lmbda=0.5)


ASKED = {"k": 24, "lmbda": 0.3}


def under(page, content, tokens, **settings):
    """What the browser shows of the tokens under other settings."""
    (found,) = page.evaluate(MIXED, [content, tokens, ASKED | settings])
    return [one["p"] for one in found]


@pytest.mark.parametrize("pointers", [False, True])
def test_shared_tokens_count_in_the_browser_when_a_text_is_explained(
    page, model, tokenizer, weighed, pointers
):
    more = {"retomaton": True, "min_knns": 8, "pointer_weight": 5.0} if pointers else {}
    memory = Memory(model, weighed, **ASKED, **more)
    own = memory.config.temperature
    assert memory.config.suffix_weight == 3.0
    live = Live(memory, greedy=False)
    trace = explain(model, tokenizer, memory, TEXTS[1], on_vote=live.add)
    content, _ = live.packed(str)
    assert content["bonus"] is not None
    tokens = [one.token_id for one in trace[0].tokens]
    for settings in ({"temperature": own}, {"temperature": 2 * own}, {"lmbda": 0.9}):
        other = memory.asked(**settings)
        expected = explain(model, tokenizer, other, TEXTS[1])[0].tokens
        found = under(page, content, tokens, **({"temperature": own} | settings))
        assert found == pytest.approx([one.p for one in expected], rel=1e-3, abs=1e-6)


def test_a_page_says_what_it_shows_and_what_it_cannot(visit, model, tokenizer, weighed):
    library = Library.of("tiny", model, tokenizer, [weighed], [TEXTS[1][:30]])
    with serving(library) as (url, _):
        one = visit(url=url)
        page = one.page
        one.write(TEXTS[1][:30])
        note = page.locator("#answers .kl-stale")
        slide(page, 0.2)
        expect(note).to_contain_text("Colours and bars show λ 0.2")
        page.get_by_role("button", name="More settings").click()
        temperature = page.locator("#temperature input")
        temperature.fill("0.5")
        expect(note).to_contain_text("τ 0.5")
        slide(page, 5, "k")
        expect(note).to_contain_text("Colours and bars show λ 0.2, k 5, τ 0.5")
        note.get_by_role("button", name="Write again").click()
        expect(note).to_have_count(0)
        page.get_by_role("button", name="own settings").click()
        expect(note).to_contain_text("more than 5 neighbors are wanted now")
        one.check()


def test_what_is_moved_does_not_count_in_a_text_for_which_a_gate_set_lambda(
    visit, model, tokenizer, weighed, tmp_path
):
    folder = shutil.copytree(weighed.folder, tmp_path / "gated")
    write_settings(Datastore(folder), 16, 0.5, 5.0, random_adaptive())
    library = Library.of("tiny", model, tokenizer, [Datastore(folder)], [TEXTS[1][:30]])
    with serving(library) as (url, _):
        one = visit(url=url)
        one.write(TEXTS[1][:30])
        note = one.page.locator("#answers .kl-stale")
        slide(one.page, 0.2)
        expect(note).to_contain_text("the gate set λ for each word")
        note.get_by_role("button", name="Write again").click()
        expect(note).to_have_count(0)
        slide(one.page, 0.3)
        expect(note).to_contain_text("Colours and bars show λ 0.3")
        one.check()
