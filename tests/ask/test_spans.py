"""The words of a sentence that answer a question: which spans are scored, and how."""

import copy
import re

import pytest
import torch
from transformers import GPT2LMHeadModel

from knn_logits.ask import spans
from knn_logits.ask.ranking import content_words
from knn_logits.ask.spans import answer_spans

QUESTION = "How long is the crane?"
SENTENCE = "The crane (built in 1932) is 4.8 m long, they say."


@pytest.fixture(scope="module")
def roomy(model):
    """A model that has room for the examples, of tokens that the small tokenizer makes short."""
    torch.manual_seed(1)
    config = copy.deepcopy(model.config)
    config.n_positions = 2048
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(autouse=True)
def instructed(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages }}")


def scored(model, tokenizer, text):
    """The score of a text as the answer, by one pass over all."""
    prompt = tokenizer(spans._EXAMPLES)["input_ids"]
    prompt += tokenizer(f"{SENTENCE}\nQuestion: {QUESTION}\nAnswer:")["input_ids"]
    ids = tokenizer(f" {text}")["input_ids"] + tokenizer("\n")["input_ids"][:1]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return float(logits.log_softmax(-1)[range(len(ids)), ids].sum()) / len(ids) ** 0.5


def test_the_best_of_all_spans_is_that_of_single_passes(roomy, tokenizer, monkeypatch):
    monkeypatch.setattr(spans, "_STARTS", 100)
    spans._examples_read.clear()
    (span,), passes = answer_spans(roomy, tokenizer, QUESTION, [("", SENTENCE)])
    words = list(re.finditer(r"\w(?:\w|\.(?=\w))*", SENTENCE))
    texts = [
        SENTENCE[first.start() : last.end()]
        for place, first in enumerate(words)
        for last in words[place : place + spans._WORDS]
    ]
    # A span ends where one of its tokens does.
    texts = [text for text in texts if set(content_words(text)) - {"long", "crane"}]
    best = max((scored(roomy, tokenizer, text), text) for text in texts)
    assert SENTENCE[span.start : span.end] == best[1]
    assert span.score == pytest.approx(best[0], abs=1e-4)
    assert passes == 4


def test_a_cache_that_only_can_be_cut_gives_the_same(roomy, tokenizer, monkeypatch):
    together, _ = answer_spans(roomy, tokenizer, QUESTION, [("", SENTENCE)] * 2)
    monkeypatch.delattr("transformers.Cache.batch_repeat_interleave")
    spans._examples_read.clear()
    one_by_one, passes = answer_spans(roomy, tokenizer, QUESTION, [("", SENTENCE)] * 2)
    assert passes <= 1 + 2 * (1 + spans._STARTS)
    assert not spans._examples_read
    for a, b in zip(together, one_by_one, strict=True):
        assert (a.start, a.end) == (b.start, b.end)
        assert a.score == pytest.approx(b.score, abs=1e-4)


def test_a_sentence_after_another_is_scored_as_if_it_were_the_first(roomy, tokenizer):
    other = "A queen of Oldenport drank nothing at all."
    both, _ = answer_spans(roomy, tokenizer, QUESTION, [("", other), ("", SENTENCE)])
    alone, _ = answer_spans(roomy, tokenizer, QUESTION, [("", SENTENCE)])
    assert (both[1].start, both[1].end) == (alone[0].start, alone[0].end)
    assert both[1].score == pytest.approx(alone[0].score, abs=1e-4)


def test_words_of_the_question_are_no_answer(roomy, tokenizer):
    (span,), _ = answer_spans(roomy, tokenizer, QUESTION, [("", "Long crane, new.")])
    assert "new" in span.within("Long crane, new.")
    assert answer_spans(roomy, tokenizer, QUESTION, [("", "The crane is a long crane.")])[0] == [
        None
    ]


def test_words_of_the_question_answer_it_where_it_offers_a_choice(roomy, tokenizer):
    question = "Is the crane long or short?"
    (span,), _ = answer_spans(roomy, tokenizer, question, [("", "The crane: long.")])
    assert span is not None


@pytest.mark.parametrize("sentence", ["", "… — !", "word " * 3000, "x" * 100_000])
def test_no_span_without_words_or_in_what_is_too_long(roomy, tokenizer, sentence):
    assert answer_spans(roomy, tokenizer, QUESTION, [("", sentence)])[0] == [None]


def test_a_model_without_room_for_the_examples_picks_no_words(model, tokenizer):
    assert answer_spans(model, tokenizer, QUESTION, [("", SENTENCE)]) == ([None], 0)


def test_a_model_whose_cache_cannot_be_cut_picks_no_words(roomy, tokenizer, monkeypatch):
    monkeypatch.setattr(roomy.config, "layer_types", ["sliding_attention"], raising=False)
    assert answer_spans(roomy, tokenizer, QUESTION, [("", SENTENCE)]) == ([None], 0)


def test_a_model_without_a_chat_template_picks_no_words(roomy, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    assert answer_spans(roomy, tokenizer, QUESTION, [("", SENTENCE)]) == ([None], 0)


def test_what_stands_before_a_sentence_is_read_and_never_answers(roomy, tokenizer):
    row = "| 4.8 m | 1932 |"
    (span,), _ = answer_spans(roomy, tokenizer, QUESTION, [("| Length | Year |", row)])
    (alone,), _ = answer_spans(roomy, tokenizer, QUESTION, [("", row)])
    assert row[span.start : span.end] in ("4.8 m", "4.8", "1932", "4.8 m | 1932", "m | 1932")
    assert span.score != pytest.approx(alone.score, abs=1e-4)


def test_a_sentence_that_cannot_win_is_not_read(roomy, tokenizer):
    rows = [("", SENTENCE)] * 3
    spans._examples_read.clear()
    read, passes = answer_spans(roomy, tokenizer, QUESTION, rows, [0.0, -1e3, -1e4])
    assert (len(read), passes) == (1, 4)
    read, passes = answer_spans(roomy, tokenizer, QUESTION, rows, [0.0, -1e-3, -1e4])
    assert (len(read), passes) == (2, 6)  # the examples are not read again


def test_the_examples_are_read_once_while_the_model_stays_the_same(roomy, tokenizer):
    model = copy.deepcopy(roomy)
    first, passes = answer_spans(model, tokenizer, QUESTION, [("", SENTENCE)])
    again, fewer = answer_spans(model, tokenizer, QUESTION, [("", SENTENCE)])
    assert (again, fewer) == (first, passes - 1)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight *= 0.5
    changed, passes = answer_spans(model, tokenizer, QUESTION, [("", SENTENCE)])
    spans._examples_read.clear()
    assert (changed, passes) == answer_spans(model, tokenizer, QUESTION, [("", SENTENCE)])
    assert changed[0].score != first[0].score


@pytest.mark.parametrize(("log_p", "starts"), [(0.0, 1), (-50.0, 3)])
def test_a_start_that_cannot_win_is_not_scored(tokenizer, log_p, starts):
    scored = []

    class Reader:
        def after(self, rows):
            scored.extend(rows)
            return [torch.full((len(row), 384), log_p) for row in rows]

    first = torch.full((384,), -9.0)
    spans._likeliest(Reader(), tokenizer, "red or blue", first, 0, frozenset())
    assert len(scored) == starts
