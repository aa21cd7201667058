"""Passages ranked by words, held against a plain BM25; words; questions that refer back."""

import math
from collections import Counter
from types import SimpleNamespace

import pytest
from conftest import TEXTS

from knn_logits.ask.ranking import (
    Ranked,
    Ranking,
    codes_of,
    content_words,
    names_codes,
    refers_back,
    squeezed,
    words_of,
)


@pytest.fixture(scope="module")
def ranking():
    return Ranking([SimpleNamespace(text=text, named="") for text in TEXTS])


def plain_bm25(query, texts, k1=1.5, b=0.75):
    bags = [Counter(words_of(text)) for text in texts]
    mean = sum(sum(bag.values()) for bag in bags) / len(bags)
    counts = Counter(word for bag in bags for word in bag)

    def score(bag):
        length = sum(bag.values())
        return sum(
            math.log(1 + (len(bags) - counts[word] + 0.5) / (counts[word] + 0.5))
            * bag[word]
            / (bag[word] + k1 * (1 - b + b * length / mean))
            for word in query
        )

    return [score(bag) for bag in bags]


def test_scores_are_those_of_a_plain_bm25(ranking):
    question = "Which queen founded Oldenport in 1312?"
    ranked = ranking.rank(question, len(TEXTS))
    scores = plain_bm25(["queen", "found", "oldenport", "1312"], TEXTS)
    assert [row.score for row in ranked] == pytest.approx(sorted(scores)[::-1][: len(ranked)])
    assert ranked[0].passage.text == TEXTS[2]


def test_a_hidden_passage_is_not_found(ranking):
    ranked = ranking.rank("queen of Oldenport", 8, hidden=[2])
    assert TEXTS[2] not in [row.passage.text for row in ranked]
    assert ranking.rank("queen of Oldenport", 0) == []


def test_no_passage_is_about_words_that_none_has(ranking):
    assert ranking.rank("photosynthesis?", 3) == []
    assert ranking.rank("?!", 3) == [] == Ranking([]).rank("crane", 3)


def test_words_are_folded_and_a_code_is_a_word_and_its_parts():
    assert words_of("Köln's K-3733 crates") == [
        "koln",
        "s",
        "koln's",
        "k",
        "3733",
        "k-3733",
        "crate",
    ]
    assert content_words("How much do the crates cost?") == ["crate", "cost"]


@pytest.mark.parametrize(
    ("question", "refers"),
    [
        ("And how heavy is it?", True),
        ("Why?", True),
        ("How heavy is the crane?", False),
        ("And the crane?", True),
        ("What about the crane?", True),
        ("Und der Kran?", True),
        ("And how heavy is the crane?", False),
        ("What is the crane about?", False),
    ],
)
def test_questions_that_refer_back(question, refers):
    assert refers_back(question) is refers


@pytest.mark.parametrize(
    ("question", "codes"),
    [
        ("How many litres does the FM-3 hold?", {"fm3"}),
        ("Is E529 worse than K-3733/B?", {"e529", "k3733"}),
        ("Who won WW2 in the 1940s, with 20th-century F1 cars?", set()),
    ],
)
def test_codes_that_a_question_names(question, codes):
    assert codes_of(question) == codes


def test_a_code_is_the_same_however_it_is_joined():
    assert squeezed("FM-3") == squeezed("fm 3") == squeezed("FM3") == "fm3"


@pytest.mark.parametrize(
    ("question", "text", "names"),
    [
        ("What is F77?", "F13 means that the burner did not ignite.", False),
        ("What is F13?", "F13 means that the burner did not ignite.", True),
        ("What is F77?", "The burner did not ignite.", True),
        ("What is F77?", "F13 is harmless, F 77 is not.", True),
        ("Who won the T20 in 2016?", "The Twenty20 of 2016 went to the West Indies.", True),
        ("What is F777?", "The burner did not ignite.", False),
    ],
)
def test_a_short_code_is_missed_where_another_like_it_is_named(question, text, names):
    passage = SimpleNamespace(text=text, named="manual.txt")
    assert names_codes(question, [Ranked(passage, 1.0)]) is names
