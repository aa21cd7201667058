"""Words that mean nearly the same: by embeddings, in the ranking, and in sentences."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from knn_logits.ask.meanings import Meanings
from knn_logits.ask.quoting import candidates
from knn_logits.ask.ranking import Ranking

TEXTS = ["Dental insurance is free.", "The crane lifts stones.", "Harbors open at dawn."]


class Tokenizer:
    """A tokenizer whose vocabulary has a token for each of some words."""

    def __init__(self, words):
        self._words = words

    def get_vocab(self):
        return {f"\u0120{word}": row for row, word in enumerate(self._words)}


def meanings_of(dims=128, device="cpu"):
    """Embeddings at random, but for "teeth" near "dental" and a direction that all words share."""
    torch.manual_seed(1)
    others = [first + second for first in "bcdfgklmnp" for second in "abcdefghijklmnopqrst"]
    words = ["dental", "teeth", "crane", "stones", "insurance", *others]
    vectors = torch.randn(len(words), dims)
    vectors[1] = vectors[0] + 0.8 * torch.randn(dims)
    vectors += 5 * torch.randn(dims) * torch.rand(len(words), 1)
    embeddings = SimpleNamespace(weight=vectors.to(device))
    model = SimpleNamespace(get_input_embeddings=lambda: embeddings)
    return partial(Meanings, model, Tokenizer(words), "english"), others


def ranking_of(meanings, others):
    texts = [*TEXTS, " ".join(others)]
    passages = [
        SimpleNamespace(text=text, named="", heading="", title="", above="", over=())
        for text in texts
    ]
    return Ranking(passages, "english", meanings)


def test_a_word_is_like_another_of_near_the_same_embedding():
    ranking = ranking_of(*meanings_of())
    alike = ranking.alike("Who pays for my teeth and the crane?")
    assert list(alike["teeth"]) == ["dental"]
    assert 0.5 < alike["teeth"]["dental"] < 1
    assert alike["crane"] == {}


def test_embeddings_of_few_numbers_are_like_by_chance_and_count_nothing():
    ranking = ranking_of(*meanings_of(dims=6))
    assert not any(ranking.alike("teeth crane stones").values())


def test_a_model_that_keeps_its_embeddings_knows_no_such_words():
    assert ranking_of(*meanings_of(device="meta")).alike("Who pays for my teeth?") == {}


def test_a_passage_is_found_by_a_word_that_means_the_same():
    question = "Who pays for my teeth?"
    ranking = ranking_of(*meanings_of())
    ranked = ranking.rank(question, 3, alike=ranking.alike(question))
    assert [row.passage.text for row in ranked] == TEXTS[:1]
    named = ranking.rank("dental", 1)[0].score
    assert ranked[0].score == pytest.approx(named * ranking.alike(question)["teeth"]["dental"])
    assert ranking.rank(question, 3) == ranking_of(None, []).rank(question, 3) == []


def test_a_sentence_shares_a_word_that_means_the_same_in_part():
    question = "Who pays for my teeth?"
    ranking = ranking_of(*meanings_of())
    alike = ranking.alike(question)
    ranked = ranking.rank(question, 1, alike=alike)
    (sentence,) = candidates(question, ranked, lambda word: 2.0, alike)
    assert sentence.shared == pytest.approx(2 * alike["teeth"]["dental"])
    (plain,) = candidates(question, ranked, lambda word: 2.0)
    assert plain.shared == 0
