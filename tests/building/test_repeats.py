"""How much of a corpus stands in it more than once, and what a build says of it."""

import logging

import numpy as np
import pytest
from conftest import TEXTS

import knn_logits
from knn_logits.building import calibration
from knn_logits.building.calibration import repeated_share

RANDOM = np.random.default_rng(5).integers(0, 100, 5000).astype(np.int32)


def by_hand(tokens, size=32):
    spans = [tuple(tokens[at : at + size].tolist()) for at in range(len(tokens) - size + 1)]
    places = {span: [] for span in spans}
    for at, span in enumerate(spans):
        places[span].append(at)
    return float(np.mean([places[span][-1] - places[span][0] >= size for span in spans]))


@pytest.mark.parametrize(
    "tokens",
    [
        RANDOM,
        np.concatenate([RANDOM, RANDOM]),
        np.concatenate([RANDOM, RANDOM[:2500]]),
        np.tile(RANDOM[:7], 200),
        np.zeros(64, np.int32),
        np.concatenate([RANDOM[:50], np.zeros(60, np.int32), RANDOM[50:100]]),
        RANDOM[:63],
        np.zeros(0, np.int32),
    ],
    ids=["once", "twice", "in part", "a sentence", "one token", "dashes", "short", "nothing"],
)
@pytest.mark.parametrize("at_once", [1 << 20, 100])
def test_the_share_is_that_of_all_spans(tokens, at_once, monkeypatch):
    monkeypatch.setattr(calibration, "_TOKENS_AT_ONCE", at_once)
    expected = by_hand(tokens) if len(tokens) >= 64 else 0.0
    assert repeated_share(tokens) == pytest.approx(expected, abs=0.06)
    assert repeated_share(tokens) == repeated_share(tokens)
    if expected in (0.0, 1.0):
        assert repeated_share(tokens) == expected


@pytest.mark.parametrize(("texts", "said"), [(TEXTS, False), (TEXTS * 2, True)])
def test_a_build_says_that_a_corpus_is_mostly_copies(
    model, tokenizer, tmp_path, caplog, texts, said
):
    with caplog.at_level(logging.WARNING, "knn_logits"):
        knn_logits.build_datastore(model, tokenizer, texts, tmp_path / "s")
    assert ("stands more than once" in caplog.text) is said
