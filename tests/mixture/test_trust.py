"""Trust: λ by how rare the shared words are, and a text that is the model's own where it is 0."""

import pytest
import torch
from conftest import TEXTS, make_gpt2
from hypothesis import given
from hypothesis import strategies as st
from trusting import with_trust

from knn_logits import KNNLogitsProcessor, Memory, Trace, build_datastore
from knn_logits.evidence.render import to_html
from knn_logits.mixture.trust import Trust, trusted
from knn_logits.search.neighbors import Neighbors
from knn_logits.store.records import TrustRecord

PROMPT = "When error code E42 appears, open"
RECORDS = st.builds(
    TrustRecord,
    limit=st.floats(0.1, 100.0),
    offset=st.floats(-8.0, 8.0),
    slope=st.floats(0.0, 8.0),
)


@pytest.fixture(scope="module")
def silent(store):
    return with_trust(store, 1e6)


@pytest.fixture(scope="module")
def speaking(store):
    return with_trust(store, 1.0, offset=5.0)


@given(RECORDS, st.lists(st.floats(0.0, 500.0), min_size=1), st.floats(0.0, 1.0))
def test_lambda_is_in_its_range_and_grows_with_rarity(record, rarity, most):
    rarity = torch.tensor(sorted(rarity))
    lmbda = trusted(rarity, record, most)
    assert bool((lmbda >= 0.0).all())
    assert bool((lmbda <= most + 1e-6).all())
    assert bool((lmbda[rarity < record.limit] == 0.0).all())
    assert bool((lmbda.diff() >= -1e-6).all())


def neighbors(rarity):
    ids = torch.tensor([[3], [3]])
    return Neighbors(ids, torch.zeros(2, 1), ids, rarity=rarity)


def test_the_gate_is_silent_where_the_model_would_end():
    log_p_lm = torch.log_softmax(torch.tensor([[0.0, 5.0, 1.0, 0.0], [5.0, 0.0, 1.0, 0.0]]), -1)
    gate = Trust(TrustRecord(limit=2.0, offset=0.0, slope=1.0), 0.9, ends=(1,))
    found = gate.lmbda(neighbors(torch.tensor([4.0, 4.0])), "l2", log_p_lm)
    assert found.tolist() == pytest.approx([0.0, float(torch.sigmoid(torch.tensor(2.0)))])
    # Neighbors of a search say nothing about words.
    assert gate.lmbda(neighbors(None), "l2", log_p_lm).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("draft", [True, False])
def test_without_trust_the_text_is_the_models_own(model, tokenizer, silent, draft):
    inputs = tokenizer([PROMPT, "E42"], return_tensors="pt", padding=True, padding_side="left")
    inputs = inputs if not draft else tokenizer(PROMPT, return_tensors="pt")
    own = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    with KNNLogitsProcessor(model, silent) as knn:
        output = knn.generate(**inputs, max_new_tokens=24, do_sample=False, draft=draft)
        assert torch.equal(output, own)
        trace = knn.trace(output, tokenizer)
    for sequence in trace:
        assert all(one.lmbda == one.influence == 0.0 for one in sequence.tokens)
        assert not any(one.neighbors for one in sequence.tokens)
        assert sequence.alone
        assert sequence.near is False
        assert "the model alone wrote this" in to_html(Trace([sequence]))


def test_a_trusted_passage_is_followed_alike_with_drafts_in_a_batch_and_alone(
    model, tokenizer, speaking
):
    inputs = tokenizer([PROMPT, "Warm"], return_tensors="pt", padding=True, padding_side="left")
    settings = {"max_new_tokens": 24, "do_sample": False}
    with KNNLogitsProcessor(model, speaking) as knn:
        together = knn.generate(**inputs, **settings)
        for row, text in enumerate([PROMPT, "Warm"]):
            alone = tokenizer(text, return_tensors="pt")
            texts = [knn.generate(**alone, draft=draft, **settings) for draft in (True, False)]
            assert torch.equal(*texts)
            size = alone["input_ids"].shape[1]
            new = together[row, inputs["input_ids"].shape[1] :]
            assert torch.equal(texts[0][0, size:], new[: texts[0].shape[1] - size])
        sequence = knn.trace(texts[1], tokenizer)[0]
    assert not sequence.alone
    tokens = sequence.tokens
    quoted = [one for one in tokens if one.influence > 0.5]
    assert quoted
    for one in quoted:
        assert one.lmbda == pytest.approx(0.7)
        assert one.neighbors[0].matched > 0
        assert one.neighbors[0].distance is not None


def test_words_before_a_control_token_earn_no_trust(model, tokenizer, speaking):
    memory = Memory(model, speaking)
    end = int(model.generation_config.eos_token_id)
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    states = torch.zeros(1, 1, memory.stores[0].manifest.dim)
    assert float(memory.neighbors(states, ids).rarity) > 0.0
    ids = torch.cat([ids, torch.tensor([[end]])], dim=1)
    assert float(memory.neighbors(states, ids).rarity) == 0.0


@pytest.mark.parametrize("settings", [{"lmbda": 0.7}, {"retomaton": True}, {"preset": "scoring"}])
def test_a_setting_that_weighs_neighbors_replaces_trust(model, silent, settings):
    memory = Memory(model, silent, **settings)
    assert memory.gate is None
    assert Memory(model, silent).gate is not None


def test_scored_text_has_the_models_perplexity_without_trust(evaluate, silent):
    result = evaluate(silent, ["E42 is not here at all."], preset="writing")
    assert result.total.perplexity.interpolated == result.total.perplexity.lm


def test_explained_text_is_measured_against_the_nearest_entries(explain, store, speaking):
    text = "When error code E42 appears, open the valve."
    trace = explain(speaking, text, preset="writing")
    assert any(one.influence > 0.5 for one in trace[0].tokens)
    assert trace[0].familiarity == explain(store, text)[0].familiarity


def test_an_explained_text_is_not_the_models_alone(explain, silent):
    trace = explain(silent, "Nobody wrote this here.", preset="writing")
    assert not trace[0].alone


@pytest.mark.parametrize(("dtype", "passes"), [(torch.bfloat16, 23), (torch.float32, None)])
def test_in_half_precision_only_a_followed_passage_has_drafts(tokenizer, tmp_path, dtype, passes):
    """A pass over several tokens rounds otherwise, and the text has to be the model's own."""
    model = make_gpt2().to(dtype)
    store = build_datastore(model, tokenizer, TEXTS, tmp_path / "s", calibrate=False)
    inputs = tokenizer(PROMPT + " " + PROMPT, return_tensors="pt")
    settings = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    own = model.generate(**inputs, **settings)
    with KNNLogitsProcessor(model, with_trust(store, 1e6)) as knn:
        assert torch.equal(knn.generate(**inputs, **settings), own)
        # An untrained model repeats itself, which its own text drafts.
        assert knn.passes == passes if passes else knn.passes < 23
    with KNNLogitsProcessor(model, with_trust(store, 1.0, offset=5.0)) as knn:
        knn.generate(**inputs, **settings)
        assert knn.passes < 23
