"""Questions in other languages: their commonest words count for nothing, and endings for little."""

import sys
from types import ModuleType

import pytest
from test_quoting import found

from knn_logits.ask import languages
from knn_logits.ask.languages import language_of
from knn_logits.ask.quoting import candidates
from knn_logits.ask.ranking import Ranking, content_words, refers_back

HEDGES = "Die Hecken dürfen höchstens 1,25 Meter hoch sein. Das Wasser wird im April angestellt."


@pytest.mark.parametrize(
    ("question", "language", "words"),
    [
        ("Wie hoch darf eine Hecke sein?", "german", ["hoch", "heck"]),
        ("Wer ist der Vorsitzende des Vereins?", "german", ["vorsitz", "verein"]),
        ("Quelle est la hauteur de la tour ?", "french", ["hauteur", "tour"]),
        ("¿Cuánto cuesta la entrada?", "spanish", ["cuest", "entrad"]),
        ("How high is a hedge?", "english", ["high", "hedg"]),
        ("Bachmeier?", "english", ["bachmeier"]),
        ("", "english", []),
    ],
)
def test_what_a_question_is_about(question, language, words):
    assert language_of(question) == language
    assert content_words(question, language) == words


def test_a_name_of_another_language_leaves_a_question_english():
    assert language_of("What did Die Zeit write in 1990?") == "english"


def test_a_sentence_shares_words_with_other_endings():
    listed = candidates("Wie hoch darf eine Hecke sein?", [found(HEDGES)], lambda word: 1.0)
    assert listed[0].text.startswith("Die Hecken")
    assert listed[0].shared == 2


def test_passages_are_ranked_by_the_words_of_a_language():
    passages = [found(text).passage for text in (HEDGES, "Wie man sie darf, wer ist der wie.")]
    for passage in passages:
        passage.named = ""
    assert [
        row.passage for row in Ranking(passages, "german").rank("Wie hoch darf eine Hecke sein?", 2)
    ] == passages[:1]


def test_a_question_of_common_words_refers_back():
    assert refers_back("Und wann?")
    assert not refers_back("Und wie hoch ist der Turm?")


def test_bm25s_is_imported_without_jax(monkeypatch):
    # With JAX, bm25s sorts on the GPU at its import, and JAX reserves most of the memory.
    jax = ModuleType("jax")
    for name in [name for name in sys.modules if name.partition(".")[0] == "bm25s"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", jax)
    imported = languages._import_bm25s()
    assert not imported.selection.JAX_IS_AVAILABLE
    assert sys.modules["jax"] is jax
