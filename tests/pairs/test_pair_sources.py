"""Two rows of a batch may have written the same to other sources: each is its own text."""

import numpy as np
import pytest
import torch
from conftest import PAIRS
from gate_cases import Curve
from pair_mixtures import LMBDA, SOURCES, TEMPERATURE, K, ended, mixtures

import knn_logits

SETTINGS = {"k": K, "lmbda": LMBDA, "temperature": TEMPERATURE}
GREEDY = {"max_new_tokens": 8, "return_dict_in_generate": True, "do_sample": False}
BEAMS = GREEDY | {"num_beams": 4, "output_scores": True}
CURVE = ([1.0, 10.0, 25.0, 60.0], [0.95, 0.5, 0.8, 0.05])


@pytest.fixture(scope="module")
def other_store(marian, pair_tokenizer, tmp_path_factory):
    """A second datastore of the model: the same sentences, the other way."""
    turned = [
        knn_logits.Document(source, f"t{number}", source=target)
        for number, (source, target) in enumerate(PAIRS)
    ]
    folder = tmp_path_factory.mktemp("others") / "store"
    return knn_logits.build_datastore(marian, pair_tokenizer, turned, folder, **SETTINGS)


def written(model, tokenizer, knn, sources, **settings):
    """What is written to some sources: the trace of each."""
    batch = tokenizer(sources, return_tensors="pt", padding=True)
    output = model.generate(**batch, logits_processor=[knn], **settings)
    return knn.trace(output, tokenizer)


def check_alone(model, tokenizer, stores, sources, search, settings):
    """Beams of a batch are those of each source, with the same scores."""

    def beams(some):
        with knn_logits.KNNLogitsProcessor(model, stores, **search) as knn:
            batch = tokenizer(some, return_tensors="pt", padding=True)
            output = model.generate(**batch, logits_processor=[knn], **settings)
        return [ended(row) for row in output.sequences.tolist()], output.sequences_scores.tolist()

    texts, scores = beams(sources)
    for row, source in enumerate(sources):
        assert beams([source]) == ([texts[row]], [pytest.approx(scores[row], abs=1e-5)])


def test_beams_of_a_batch_are_those_of_each_source(marian, pair_tokenizer, pair_store):
    own = SETTINGS | {"lmbda": Curve("l2", *CURVE)}
    check_alone(marian, pair_tokenizer, pair_store, SOURCES[6:10], own, BEAMS)


def test_several_stores(marian, pair_tokenizer, pair_store, other_store):
    stores = [pair_store, other_store]
    check_alone(marian, pair_tokenizer, stores, SOURCES[6:9], SETTINGS, BEAMS)


MODES = {
    "no cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static"},
    "sampling": {"do_sample": True, "top_k": 0, "num_return_sequences": 3},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("mode", MODES)
def test_the_trace_is_the_mixture(marian, pair_tokenizer, pair_store, mode):
    torch.manual_seed(2)
    own = GREEDY | MODES[mode]
    returned = own.get("num_return_sequences", 1)
    sources = SOURCES[5:6] if mode == "prompt lookup" else SOURCES[5:10]
    batch = pair_tokenizer(sources, return_tensors="pt", padding=True)
    with knn_logits.KNNLogitsProcessor(marian, pair_store, **SETTINGS) as knn:
        output = marian.generate(**batch, logits_processor=[knn], **own)
        trace = knn.trace(output, pair_tokenizer)
    assert len(trace) == len(sources) * returned
    for row, sequence in enumerate(output.sequences.tolist()):
        text = ended(sequence)
        source = pair_tokenizer(sources[row // returned])["input_ids"]
        expected = mixtures(marian, pair_store, source, text)
        assert trace[row].prompt == ""
        assert [token.token_id for token in trace[row].tokens] == text[1:]
        for token, mixture in zip(trace[row].tokens, expected, strict=True):
            assert token.p == pytest.approx(mixture[token.token_id], abs=1e-4)


def test_sources_are_shown_and_written_safely(marian, pair_tokenizer, tmp_path, capsys):
    source = '<img src=x onerror="alert(1)"> & the crane'
    source += " \x1b[31mred\x9b7m"
    documents = [knn_logits.Document("Der Kran hebt eine Kiste.", "p", source=source)]
    store = knn_logits.build_datastore(
        marian, pair_tokenizer, documents, tmp_path / "s", calibrate=False
    )
    trace = knn_logits.explain(
        marian, pair_tokenizer, store, documents[0].text, source="The crane", lmbda=0.99
    )
    page = trace._repr_html_()
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt; &amp; the crane" in page
    assert "<img" not in page
    trace.save(tmp_path / "trace.json")
    again = knn_logits.Trace.load(tmp_path / "trace.json")
    assert again == trace
    assert {near.source for token in again[0].tokens for near in token.neighbors} == {source}
    trace.show()
    shown = " ".join(capsys.readouterr().out.split())
    assert source.replace("\x1b", "\ufffd").replace("\x9b", "\ufffd") in shown


def test_what_is_explained_is_the_mixture(marian, pair_tokenizer, pair_store):
    for source, target in (PAIRS[3], (PAIRS[0][0], PAIRS[5][1])):
        trace = knn_logits.explain(
            marian, pair_tokenizer, pair_store, target, source=source, **SETTINGS
        )
        ids = [1, *pair_tokenizer(target)["input_ids"]]
        expected = mixtures(marian, pair_store, pair_tokenizer(source)["input_ids"], ids)
        (sequence,) = trace
        assert sequence.prompt == ""
        assert [token.token_id for token in sequence.tokens] == ids[1:]
        chosen = [mixture[token] for mixture, token in zip(expected, ids[1:], strict=True)]
        assert np.allclose([token.p for token in sequence.tokens], chosen, atol=1e-4)
        assert all(near.source for token in sequence.tokens for near in token.neighbors)
