"""The sentence that answers: how passages are cut, and how the model scores them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from knn_logits.ask.quoting import best_sentence, candidates, query_likelihoods, sentences_of
from knn_logits.ask.ranking import Ranked
from knn_logits.ask.spans import Span


def found(text, heading=""):
    return Ranked(
        SimpleNamespace(text=text, heading=heading, title="Crane", above=f"Crane: {heading}"), 1.0
    )


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It is 4.8 m long. Here is more.", ["It is 4.8 m long.", "Here is more."]),
        ("The T. T. Tsui Gallery is by J. A. Hobson (e.g. Plate 3). It is “red.” Dr. Oda "
         "(see Fig. 2.) painted it.",
         ["The T. T. Tsui Gallery is by J. A. Hobson (e.g. Plate 3).", "It is “red.”",
          "Dr. Oda (see Fig. 2.) painted it."]),
        ("A line of text that goes on and on and on, so that it is a long line\nis wrapped here.",
         ["A line of text that goes on and on and on, so that it is a long line is wrapped here."]),
        ("Crane: 12 crowns\nPump: 7 crowns", ["Crane: 12 crowns", "Pump: 7 crowns"]),
        ("Title: A Crane\nAuthor: Maira of Oldenport, who has written a good many texts,\n"
         "    Oda of Kenmouth\nCreated: 28-Apr-2007",
         ["Title: A Crane",
          "Author: Maira of Oldenport, who has written a good many texts, Oda of Kenmouth",
          "Created: 28-Apr-2007"]),
        ("- oil the crane, which takes a long while and more than a line\n- open the winch",
         ["- oil the crane, which takes a long while and more than a line", "- open the winch"]),
    ],
)  # fmt: skip
def test_sentences(text, sentences):
    assert sentences_of(text) == sentences


def test_a_document_s_question_is_no_answer_but_leads_to_it():
    passage = found(
        "Q: How loud is the crane?\nA: It reaches 74 decibels.\n\nQ: Who paints it?\nA: Nobody."
    )
    listed = candidates("How loud is the crane?", [passage], lambda word: 1.0)
    assert listed[0].text == "It reaches 74 decibels."
    assert listed[0].lead == "Q: How loud is the crane?"
    assert all(not row.text.endswith("?") for row in listed)


def test_a_title_is_no_answer():
    passage = found("Title: Crane\nAuthor: Oda of Kenmouth\nStatus: Old")
    listed = candidates("Who is the author of the crane?", [passage], lambda word: 1.0)
    assert [row.text for row in listed] == ["Author: Oda of Kenmouth", "Status: Old"]


def test_likelihoods_are_those_of_single_passes(model, tokenizer):
    sentences = [
        "The crane lifts crates.",
        "Oil.",
        "Queen Maira founded the town of Oldenport.",
    ] * 3
    scores = query_likelihoods(model, tokenizer, "Who founded the town?", sentences)
    for sentence, score in zip(sentences, scores, strict=True):
        before = tokenizer(f"{sentence}\nQuestion:")["input_ids"]
        question = tokenizer(" Who founded the town?")["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([before + question])).logits[0]
        log_p = logits.log_softmax(-1)[len(before) - 1 : -1]
        assert score == pytest.approx(float(log_p[range(len(question)), question].sum()), abs=1e-3)


def test_the_model_decides_between_sentences_with_the_same_words(model, tokenizer):
    listed = candidates("crane", [found("The crane is old. The crane is red.")], lambda word: 0.0)
    scores = query_likelihoods(model, tokenizer, "crane", [row.read for row in listed])
    best = listed[int(np.argmax(scores))]
    assert best_sentence(model, tokenizer, "crane", listed) == (best, None, 1)
    assert best_sentence(model, tokenizer, "crane", []) == (None, None, 0)


def test_the_likeliest_answer_is_weighed_among_the_best_sentences(model, tokenizer, monkeypatch):
    listed = candidates("crane", [found("It is old. It is red. It is big. It is.")], lambda _: 0.0)
    scores = query_likelihoods(model, tokenizer, "crane", [row.read for row in listed])
    second, third = (listed[row] for row in np.argsort(-scores)[1:3])
    score = {second.text: -1.0, third.text: -0.5}

    def spans(model, tokenizer, question, texts):
        return [Span(0, 2, score.get(text, -1e3)) for text in texts], 5

    monkeypatch.setattr("knn_logits.ask.quoting.answer_spans", spans)
    monkeypatch.setattr("knn_logits.ask.quoting._ANSWER", 1e6)
    assert best_sentence(model, tokenizer, "crane", listed) == (third, Span(0, 2, -0.5), 6)
