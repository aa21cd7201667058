"""What the benchmarks of answers count, worked out by hand."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_answers_are_compared_without_case_punctuation_and_articles(script):
    scores = script("question_sets")
    assert scores.normalized("The  Tow-point, of a Kite!") == "towpoint of kite"
    assert scores.exact_match("The Petrel.", ["petrel"])
    assert scores.contained("It is 34 people.", ["34"])
    assert not scores.contained("It is 134 people.", ["34"])
    assert not scores.contained("anything", ["the"])


def test_f1_counts_shared_words_of_the_best_answer(script):
    # Shared: stone, trough. 2 * 2 / (4 words + 2 words) = 2/3.
    f1 = script("question_sets").f1
    assert f1("behind the big stone trough", ["stone trough", "chapel"]) == pytest.approx(2 / 3)
    assert f1("", ["chapel"]) == 0


def test_an_interval_holds_the_mean_and_is_a_point_without_spread(script):
    interval = script("question_sets").interval
    low, high = interval([0.0, 1.0] * 50)
    assert 0.38 < low < 0.5 < high < 0.62
    assert interval([1.0] * 10) == [1.0, 1.0]


def test_each_question_of_the_project_has_its_answer_in_its_document(script):
    of_file = script("question_sets").of_file
    contained = script("question_sets").contained
    rows = of_file(FOLDER / "ask_questions.jsonl", FOLDER / "ask_documents.jsonl")
    texts = {document.id: document.text for document in rows.documents}
    assert sum(row.answerable for row in rows.questions) == 60
    for row in rows.questions:
        assert all(contained(texts[name], row.answers) for name in row.gold), row.question
