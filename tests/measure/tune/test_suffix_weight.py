"""`tune` under a suffix weight: what is compared, what is stored, and what is translated."""

import shutil

import pytest
from conftest import TEXTS
from tuned import write_settings

import knn_logits
from knn_logits import Memory

# Texts that say after a few words what other texts say after the same words.
CORPUS = [f"{one} {two}" for one in TEXTS[:6] for two in TEXTS[:6]]
HELD_OUT = [f"{TEXTS[n % 6]} {TEXTS[(n * 5 + 1) % 6]} {TEXTS[(n + 3) % 6]}" for n in range(24)]
STORED = {"k": 24, "lmbda": 0.45, "temperature": 6.0}
SETTINGS = {"k": 64, "allow_overlap": True, "samples": 100}


@pytest.fixture(scope="module")
def built(build, tmp_path_factory):
    """A datastore whose stored settings have the suffix weight 4."""
    return build(
        CORPUS, tmp_path_factory.mktemp("weighed") / "s", index="exact", suffix_weight=4.0, **STORED
    )


@pytest.fixture
def copy(built, tmp_path):
    return shutil.copytree(built.folder, tmp_path / "s")


def measured(model, tokenizer, store, documents, **settings):
    found = knn_logits.evaluate(
        model, tokenizer, store, documents, samples=0, allow_overlap=True, **settings
    )
    return found.total.perplexity.interpolated


@pytest.mark.parametrize("weight", [None, 1.0, 1e8])
def test_the_stored_settings_are_measured_with_their_own_weight(model, tokenizer, built, weight):
    found = knn_logits.tune(model, tokenizer, built, HELD_OUT, suffix_weight=weight, **SETTINGS)
    assert found.chosen.suffix_weight == (weight or 4.0)
    held = set(found.held_out_documents)
    for part, documents in (
        (found.held_out, [one for n, one in enumerate(HELD_OUT) if n in held]),
        (found.chosen_on, [one for n, one in enumerate(HELD_OUT) if n not in held]),
    ):
        before = measured(model, tokenizer, built, documents)
        assert part.before == pytest.approx(before, rel=1e-4)
        chosen = {"k": found.k, "lmbda": found.lmbda, "temperature": found.temperature}
        chosen["suffix_weight"] = found.chosen.suffix_weight
        assert part.perplexity == pytest.approx(
            measured(model, tokenizer, built, documents, **chosen), rel=1e-4
        )
    ratio = found.held_out.perplexity / found.held_out.before
    assert found.verdict.ratio == pytest.approx(ratio, rel=1e-5)
    assert found.verdict.units == "documents"


def test_a_better_weight_is_written_and_a_worse_one_is_not(tune, copy):
    store = knn_logits.Datastore(copy)
    best = tune(copy, HELD_OUT, **SETTINGS)
    chosen = (best.k, best.lmbda, best.temperature)
    write_settings(store, *chosen, suffix_weight=4.0)
    worse = tune(copy, HELD_OUT, suffix_weight=1.0, write=True, **SETTINGS)
    assert worse.held_out.perplexity > worse.held_out.before
    assert not worse.written
    assert "not significantly better than the stored settings" in worse.refused
    assert knn_logits.Datastore(copy).manifest.settings.suffix_weight == 4.0
    write_settings(store, *chosen, suffix_weight=1.0)
    better = tune(copy, HELD_OUT, suffix_weight=4.0, write=True, **SETTINGS)
    assert better.verdict.better
    assert better.written
    assert knn_logits.Datastore(copy).manifest.settings.suffix_weight == 4.0


def test_a_memory_of_the_papers_is_compared_with_what_is_stored(model, tokenizer, built):
    memory = Memory(model, built, preset="paper")
    assert memory.config.suffix_weight == 1.0
    found = knn_logits.tune(model, tokenizer, memory, HELD_OUT[:6], **SETTINGS)
    own = knn_logits.tune(model, tokenizer, built, HELD_OUT[:6], **SETTINGS)
    assert found.chosen.suffix_weight == 1.0
    assert found.held_out.before == pytest.approx(own.held_out.before, rel=1e-5)
