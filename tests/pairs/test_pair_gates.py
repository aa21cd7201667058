"""A gate, RetoMaton with clusters, and approximate indexes, over pairs."""

import math
import shutil

import pytest
from building import MANY, builder
from conftest import PAIRS
from pair_mixtures import SOURCES

import knn_logits
from knn_logits import Document, IndexConfig

OTHERS = [
    Document(f"{target} Nummer {number}!", f"o{number}.{place}", source=f"Say: {source} {number}")
    for number in range(20, 24)
    for place, (source, target) in enumerate(PAIRS)
]
GREEDY = {"max_new_tokens": 6, "do_sample": False}


@pytest.fixture(scope="module")
def clustered(marian, pair_tokenizer, tmp_path_factory):
    """A datastore with a trained index and clusters."""
    build = builder(marian, pair_tokenizer, tmp_path_factory.mktemp("clustered"))
    return knn_logits.cluster(build("s", MANY, index=IndexConfig("IVF4,SQ8")), 40)


def traces(model, tokenizer, store, sources, **search):
    with knn_logits.KNNLogitsProcessor(model, store, **search) as knn:
        batch = tokenizer(sources, return_tensors="pt", padding=True)
        output = model.generate(**batch, logits_processor=[knn], **GREEDY)
        return knn.trace(output, tokenizer)


def probabilities(trace):
    return [(one.token_id, one.p, one.lmbda) for sequence in trace for one in sequence.tokens]


def test_a_gate_fitted_on_pairs_is_kept_and_used(marian, pair_tokenizer, clustered, tmp_path):
    folder = shutil.copytree(clustered.folder, tmp_path / "s")
    tuned = knn_logits.tune(
        marian, pair_tokenizer, folder, OTHERS, gate="meta-k", samples=20, write=True, force=True
    )
    assert tuned.gate is not None
    store = knn_logits.Datastore(folder)
    result = knn_logits.evaluate(marian, pair_tokenizer, store, OTHERS, samples=0)
    assert math.isfinite(result.total.perplexity.interpolated)
    together = traces(marian, pair_tokenizer, store, SOURCES[:4])
    alone = [traces(marian, pair_tokenizer, store, [source]) for source in SOURCES[:4]]
    for number, one in enumerate(alone):
        expected = probabilities(one)
        found = probabilities([together[number]])
        assert [token for token, *_ in found] == [token for token, *_ in expected]
        for mine, theirs in zip(found, expected, strict=True):
            assert mine[1:] == pytest.approx(theirs[1:], abs=1e-4)
    (shown,) = knn_logits.explain(
        marian, pair_tokenizer, store, PAIRS[0][1], source=PAIRS[0][0], retomaton=True
    )
    assert all(0 <= token.lmbda <= 1 for token in shown.tokens)
    (text,) = knn_logits.translate(
        marian, pair_tokenizer, [PAIRS[0][0]], store, max_new_tokens=5, retomaton=True
    )
    assert text


def test_clusters_are_followed_for_each_source(marian, pair_tokenizer, clustered):
    search = {"retomaton": True, "min_knns": 4, "k": 8, "lmbda": 0.5, "nprobe": 4}
    together = traces(marian, pair_tokenizer, clustered, SOURCES[:4], **search)
    for number, source in enumerate(SOURCES[:4]):
        expected = probabilities(traces(marian, pair_tokenizer, clustered, [source], **search))
        for mine, theirs in zip(probabilities([together[number]]), expected, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)
    result = knn_logits.evaluate(marian, pair_tokenizer, clustered, OTHERS, samples=0, **search)
    assert 0 < result.searches < result.total.tokens
    assert result.searches_saved == result.total.tokens - result.searches
