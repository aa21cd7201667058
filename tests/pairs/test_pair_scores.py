"""Perplexities, tuning, calibration and translations of pairs, against plain references."""

import math
import sys

import numpy as np
import pytest
import sacrebleu
from building import SETTINGS
from conftest import PAIRS, pair_documents
from pair_mixtures import LMBDA, SOURCES, parts

import knn_logits
from knn_logits import Document
from knn_logits.errors import MissingDependencyError

# What the datastore does not hold: sources that it has, and others.
HELD_OUT = [
    Document("Der Kran hebt die Winde.", "h0", source=PAIRS[0][0]),
    Document("Eine Stadt hatte Sorte sieben.", "h1", source="A town had grade seven."),
    Document("Ja.", "h2", source="The winch is blocked, and so is the crane of the town."),
]
PREFIX = "translate English to German: "


def reference(model, tokenizer, store, documents, prefix=""):
    """Log-probabilities of every token of the targets: by model, neighbors, and their mixture."""
    found = []
    for document in documents:
        ids = [1, *tokenizer(document.text)["input_ids"]]
        source = tokenizer(prefix + document.source)["input_ids"]
        by_model, by_neighbors = parts(model, store, source, ids)
        for step, token in enumerate(ids[1:]):
            lm, knn = by_model[step, token], by_neighbors[step, token]
            found.append((lm, knn, LMBDA * knn + (1 - LMBDA) * lm))
    with np.errstate(divide="ignore"):
        return np.log(np.array(found))


@pytest.mark.parametrize("batch_tokens", [1, 40, 4096])
def test_perplexities_are_those_of_a_plain_reference(
    marian, pair_tokenizer, pair_store, batch_tokens
):
    result = knn_logits.evaluate(
        marian, pair_tokenizer, pair_store, HELD_OUT, **SETTINGS, batch_tokens=batch_tokens
    )
    lm, _, mixed = reference(marian, pair_tokenizer, pair_store, HELD_OUT).T
    assert result.tokens == len(lm) == result.searches
    assert result.documents == 3
    assert result.perplexity.lm == pytest.approx(math.exp(-lm.mean()), rel=1e-4)
    assert result.perplexity.interpolated == pytest.approx(math.exp(-mixed.mean()), rel=1e-4)


def test_the_prefix_is_read_in_evaluations(marian, pair_tokenizer, tmp_path):
    store = knn_logits.build_datastore(
        marian, pair_tokenizer, pair_documents(), tmp_path / "s", source_prefix=PREFIX, **SETTINGS
    )
    result = knn_logits.evaluate(marian, pair_tokenizer, store, HELD_OUT)
    lm, _, mixed = reference(marian, pair_tokenizer, store, HELD_OUT, PREFIX).T
    assert result.perplexity.lm == pytest.approx(math.exp(-lm.mean()), rel=1e-4)
    assert result.perplexity.interpolated == pytest.approx(math.exp(-mixed.mean()), rel=1e-4)


def test_two_pairs_with_one_target_are_scored_alone(marian, pair_tokenizer, pair_store):
    """In one batch they are the same text to other sources."""
    twins = [Document(PAIRS[0][1], str(n), source=source) for n, source in enumerate(SOURCES[:6])]

    def losses(documents):
        found = knn_logits.evaluate(marian, pair_tokenizer, pair_store, documents, **SETTINGS)
        return found.tokens * math.log(found.perplexity.interpolated)

    assert losses(twins) == pytest.approx(sum(losses([one]) for one in twins), rel=1e-4)


# Translations


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_batch_is_translated_as_each_source_is(marian, pair_tokenizer, pair_store, num_beams):
    own = {"num_beams": num_beams, "max_new_tokens": 10}
    found = knn_logits.translate(
        marian, pair_tokenizer, SOURCES, pair_store, batch_size=5, **SETTINGS, **own
    )
    assert len(found) == len(SOURCES)
    for source, text in list(zip(SOURCES, found, strict=True))[::4]:
        batch = pair_tokenizer([source], return_tensors="pt")
        with knn_logits.KNNLogitsProcessor(marian, pair_store, **SETTINGS) as knn:
            output = marian.generate(**batch, logits_processor=[knn], do_sample=False, **own)
        assert pair_tokenizer.decode(output[0], skip_special_tokens=True).strip() == text


def test_a_memory_of_the_pairs_writes_their_targets(marian, pair_tokenizer, pair_store):
    assert knn_logits.translate(
        marian, pair_tokenizer, [source for source, _ in PAIRS], pair_store, k=1, lmbda=1.0
    ) == [target for _, target in PAIRS]
    assert knn_logits.translate(marian, pair_tokenizer, [], pair_store) == []


def test_scores_are_sacrebleus_of_what_was_written(marian, pair_tokenizer, pair_store):
    found = knn_logits.evaluate_translations(
        marian, pair_tokenizer, pair_store, pair_documents(), num_beams=2, k=1, lmbda=0.999
    )
    sources, targets = zip(*PAIRS, strict=True)
    assert (found.pairs, found.num_beams) == (len(PAIRS), 2)
    for store, score in ((None, found.lm), (pair_store, found.knn)):
        settings = {"k": 1, "lmbda": 0.999} if store else {}
        written = knn_logits.translate(
            marian, pair_tokenizer, sources, store, num_beams=2, **settings
        )
        assert score["bleu"] == sacrebleu.corpus_bleu(written, [targets]).score
        assert score["chrf"] == sacrebleu.corpus_chrf(written, [targets]).score
    assert found.signatures["bleu"].startswith("nrefs:1|")
    assert found.knn["bleu"] == pytest.approx(100.0)


def test_without_sacrebleu_one_line_says_what_to_install(
    marian, pair_tokenizer, pair_store, monkeypatch
):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(MissingDependencyError, match=r"pip install \"knn-logits\[mt\]\""):
        knn_logits.evaluate_translations(marian, pair_tokenizer, pair_store, HELD_OUT, num_beams=1)
