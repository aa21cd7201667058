"""What reading a passage changes, in words that need no logarithm."""

import math

import pytest

from knn_logits.ask.answer import Answer, AnswerToken, DocumentEffect, PassageEffect


def answer(effect, tokens=4):
    passage = PassageEffect("s", "d", "Title", None, None, "text", 1.0, True, effect, (0, 1))
    words = [AnswerToken("a", 1, 0.5, [DocumentEffect("d", 0.0)]) for _ in range(tokens)]
    return Answer("Q?", "aaaa", True, True, True, words, [passage], 1, 0.0), passage


def line(effect, tokens=4):
    found, passage = answer(effect, tokens)
    return found.effect_line(passage)


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (5.26, "likelier for the model: each piece of a word 5.3 times as likely, on average."),
        (17.4, "likelier for the model: each piece of a word 17 times as likely, on average."),
        (9.96, "likelier for the model: each piece of a word 10 times as likely, on average."),
        (12345.6, "likelier for the model: each piece of a word 12,346 times as likely"),
        (0.4, "less likely for the model: each piece of a word 0.4 times as likely, on average."),
    ],
)
def test_the_factor_is_that_of_a_token_on_average(factor, says):
    assert f"Reading it makes the answer {says}" in line(4 * math.log(factor))


def test_what_was_not_measured_or_changes_nothing():
    assert line(None) is None
    assert line(3.0, tokens=0) is None
    assert line(0.1) == "Reading it hardly changes how likely the answer is."
    # No number of a float is beyond it.
    assert "times as likely" in line(1e6)


def test_a_word_sums_up_the_effects_of_its_tokens():
    found, _ = answer(1.0)
    tokens = [
        AnswerToken("Ma", 1, 0.5, [DocumentEffect("b", math.log(3)), DocumentEffect("c", 0.01)]),
        AnswerToken("ira", 2, 0.5, [DocumentEffect("b", math.log(5)), DocumentEffect("a", -1.0)]),
    ]
    assert found.word_lines(tokens) == [
        "reading b makes it 15 times as likely",
        "reading c hardly changes how likely it is",
        "reading a makes it 0.37 times as likely",
    ]
