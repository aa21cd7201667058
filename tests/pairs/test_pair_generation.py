"""What `generate()` chooses for sources is the mixture of a plain reference, step by step."""

import numpy as np
import pytest
from conftest import PAIRS
from pair_mixtures import LMBDA, SOURCES, TEMPERATURE, K, ended, mixtures

import knn_logits


@pytest.fixture
def knn(marian, pair_store):
    with knn_logits.KNNLogitsProcessor(
        marian, pair_store, k=K, lmbda=LMBDA, temperature=TEMPERATURE
    ) as processor:
        yield processor


def test_beams_are_the_mixture_in_a_padded_batch(marian, pair_tokenizer, pair_store):
    settings = {"k": K, "lmbda": LMBDA, "temperature": TEMPERATURE}
    batch = pair_tokenizer(SOURCES, return_tensors="pt", padding=True)
    with knn_logits.KNNLogitsProcessor(marian, pair_store, **settings) as knn:
        output = marian.generate(
            **batch,
            logits_processor=[knn],
            max_new_tokens=14,
            num_beams=5,
            output_scores=True,
            return_dict_in_generate=True,
        )
    for row, sequence in enumerate(output.sequences.tolist()):
        source, text = pair_tokenizer(SOURCES[row])["input_ids"], ended(sequence)
        expected = mixtures(marian, pair_store, source, text)
        total = np.log([mixture[token] for mixture, token in zip(expected, text[1:], strict=True)])
        own = float(output.sequences_scores[row]) * len(total)
        assert own == pytest.approx(float(total.sum()), abs=1e-3)


def test_a_passage_comes_with_its_source(marian, pair_tokenizer, pair_store):
    batch = pair_tokenizer([PAIRS[0][0]], return_tensors="pt")
    with knn_logits.KNNLogitsProcessor(marian, pair_store, lmbda=0.95) as knn:
        output = marian.generate(**batch, logits_processor=[knn], max_new_tokens=6)
        (sequence,) = knn.trace(output, pair_tokenizer)
    sources = dict(PAIRS)
    found = [near for token in sequence.tokens for near in token.neighbors]
    assert found
    for near in found:
        number = int(near.document[1:])
        assert near.source == PAIRS[number][0]
        assert near.snippet.replace("</s>", "").strip() in sources[near.source]
