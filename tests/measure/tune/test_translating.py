"""`tune --bleu`: the likeliest settings, decoded, and what the choice is worth on other pairs."""

import pytest
from conftest import pair_documents

import knn_logits
from knn_logits.measure.translation import bleu
from knn_logits.measure.tune import translating

PREFIX = "translate: "


@pytest.fixture(scope="module")
def prefixed(marian, pair_tokenizer, tmp_path_factory):
    """A datastore whose sources have a prefix."""
    return knn_logits.build_datastore(
        marian,
        pair_tokenizer,
        pair_documents(),
        tmp_path_factory.mktemp("stores") / "prefixed",
        source_prefix=PREFIX,
        k=16,
        lmbda=0.4,
        temperature=5.0,
    )


def test_the_choice_and_what_it_is_worth(marian, pair_tokenizer, prefixed, monkeypatch):
    alone = []

    def translate(model, tokenizer, sources, datastore=None, **settings):
        if datastore is None:
            alone.append(settings["source_prefix"])
        return knn_logits.translate(model, tokenizer, sources, datastore, **settings)

    monkeypatch.setattr(translating, "translate", translate)
    documents = pair_documents()
    found = knn_logits.tune(marian, pair_tokenizer, prefixed, documents, bleu=3)
    decoded = found.bleu
    assert alone == [PREFIX]
    assert len(decoded.trials) == 3
    assert [one.perplexity for one in decoded.trials] == sorted(
        one.perplexity for one in decoded.trials
    )
    best = max(decoded.trials, key=lambda one: one.bleu)
    assert (found.k, found.lmbda, found.temperature) == (best.k, best.lmbda, best.temperature)
    assert decoded.pairs + decoded.held_out_pairs == len(documents)
    others = [documents[number] for number in found.held_out_documents]
    sources, targets = [one.source for one in others], [one.text for one in others]
    for name, settings in {
        "before": {},
        "chosen": {"k": found.k, "lmbda": found.lmbda, "temperature": found.temperature},
    }.items():
        written = knn_logits.translate(marian, pair_tokenizer, sources, prefixed, **settings)
        assert decoded.held_out[name] == pytest.approx(bleu(written, targets))
    assert found.to_dict()["bleu"]["num_beams"] == 1


def test_what_makes_no_sense_is_refused(model, store, tokenizer, marian, pair_tokenizer, prefixed):
    with pytest.raises(knn_logits.ConfigError, match="causal model does not translate"):
        knn_logits.tune(model, tokenizer, store, ["some words"], bleu=2)
    with pytest.raises(knn_logits.ConfigError, match="leave out bleu"):
        knn_logits.tune(marian, pair_tokenizer, prefixed, pair_documents(), bleu=2, gate="distance")
    with pytest.raises(knn_logits.CorpusError, match=r"too short|too few"):
        knn_logits.tune(marian, pair_tokenizer, prefixed, pair_documents()[:1], bleu=2)
