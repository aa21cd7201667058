"""A gate over pairs, with a trained index."""

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
def indexed(marian, pair_tokenizer, tmp_path_factory):
    """A datastore with a trained index."""
    build = builder(marian, pair_tokenizer, tmp_path_factory.mktemp("indexed"))
    return build("s", MANY, index=IndexConfig("IVF4,SQ8"))


def traces(model, tokenizer, store, sources, **search):
    with knn_logits.KNNLogitsProcessor(model, store, **search) as knn:
        batch = tokenizer(sources, return_tensors="pt", padding=True)
        output = model.generate(**batch, logits_processor=[knn], **GREEDY)
        return knn.trace(output, tokenizer)


def probabilities(trace):
    return [(one.token_id, one.p, one.lmbda) for sequence in trace for one in sequence.tokens]


def test_a_gate_fitted_on_pairs_is_kept_and_used(marian, pair_tokenizer, indexed, tmp_path):
    folder = shutil.copytree(indexed.folder, tmp_path / "s")
    tuned = knn_logits.tune(
        marian, pair_tokenizer, folder, OTHERS, gate="meta-k", write=True, allow_overlap=True
    )
    assert tuned.gate is not None
    store = knn_logits.Datastore(folder)
    result = knn_logits.evaluate(marian, pair_tokenizer, store, OTHERS)
    assert math.isfinite(result.perplexity.interpolated)
    together = traces(marian, pair_tokenizer, store, SOURCES[:4])
    alone = [traces(marian, pair_tokenizer, store, [source]) for source in SOURCES[:4]]
    for number, one in enumerate(alone):
        expected = probabilities(one)
        found = probabilities([together[number]])
        assert [token for token, *_ in found] == [token for token, *_ in expected]
        for mine, theirs in zip(found, expected, strict=True):
            assert mine[1:] == pytest.approx(theirs[1:], abs=1e-4)
