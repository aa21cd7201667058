"""The sentence that answers: how passages are cut, and how the model scores them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from knn_logits.ask.quoting import (
    _batches,
    best_sentence,
    candidates,
    is_near,
    query_likelihoods,
    sentences_of,
)
from knn_logits.ask.ranking import Ranked
from knn_logits.ask.spans import Span

QUOTING = "knn_logits.ask.quoting"


def found(text, heading=""):
    return Ranked(
        SimpleNamespace(
            text=text,
            heading=heading,
            title="Crane",
            above=f"Crane: {heading}",
            named=f"Crane\n{heading}",
            over=(),
        ),
        1.0,
    )


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It is 4.8 m long. Here is more.", ["It is 4.8 m long.", "Here is more."]),
        ("The T. T. Tsui Gallery is by J. A. Hobson (e.g. Plate 3). It is “red.” Dr. Oda "
         "(see Fig. 2.) painted it.",
         ["The T. T. Tsui Gallery is by J. A. Hobson (e.g. Plate 3).", "It is “red.”",
          "Dr. Oda (see Fig. 2.) painted it."]),
        ("- Art. No.: 1001; Name: Brass key; Tel. Office: 12\n- Art. No.: 1002; Name: Iron lock",
         ["- Art. No.: 1001; Name: Brass key; Tel. Office: 12",
          "- Art. No.: 1002; Name: Iron lock"]),
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
        ("No water is below the crane.\n%\nThe pump is\nred.\n-- Oda\n----",
         ["No water is below the crane.", "The pump is", "red.", "-- Oda"]),
        ("Tools\nThe crane is oiled by Oda each spring, and by nobody else in the whole town.\n"
         "She has the key. The winch is oiled by Maira, who comes with the ferry at 7 in\n"
         "Morvik.",
         ["Tools",
          "The crane is oiled by Oda each spring, and by nobody else in the whole town.",
          "She has the key.",
          "The winch is oiled by Maira, who comes with the ferry at 7 in Morvik."]),
        ("-o, --oil\n        Oil the crane, which takes a long while and more than a line.",
         ["-o, --oil Oil the crane, which takes a long while and more than a line."]),
        ("Crane, which lifts crates of all sizes       12 crowns\n"
         "Pump, for the water under the harbour         7 crowns",
         ["Crane, which lifts crates of all sizes  12 crowns",
          "Pump, for the water under the harbour  7 crowns"]),
        ('{% alert %}\nOil the crane.\n{% endalert %}\n\n{% image "crane.png" %}',
         ["Oil the crane."]),
        (".. image:: crane.png\n   :alt: The crane.\n   :align: center\n\n:param tons: The load.",
         [".. image:: crane.png", ":param tons: The load."]),
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


@pytest.mark.parametrize(
    "line",
    ["* [Oil the crane](#oil)", "keywords: crane, oil, winch", "redirect_from:", "## The oil"],
)
def test_a_line_that_leads_to_others_is_no_answer(line):
    listed = candidates("Who oils the crane?", [found(f"{line}\n\nOda does.")], lambda word: 1.0)
    assert [row.text for row in listed] == ["Oda does."]


SENTENCE = "To move the crane to the far side of the harbour before winter, do this:"


def test_an_item_is_read_after_the_sentence_that_introduces_its_list():
    text = "Each month you pay for insurance:\n\n* Alone: $96\n* Family: $287\n\nIt ends in May."
    listed = candidates("What do I pay for my family?", [found(text)], lambda word: 1.0)
    leads = {row.text: (row.lead, row.shared) for row in listed}
    opening = "Each month you pay for insurance:"
    assert leads["Alone: $96"] == (opening, pytest.approx(0.3))
    assert leads["Family: $287"] == (opening, pytest.approx(1.3))
    assert leads["It ends in May."][0] == "" == leads[opening][0]


def test_the_names_of_a_passage_count_for_its_sentences():
    question = "How often is the crane oiled?"
    (row,) = candidates(question, [found("It needs it monthly.", "Oil")], lambda word: 1.0)
    assert (row.shared, row.named) == (0, 2)


@pytest.mark.parametrize(
    ("block", "quoted"),
    [
        ("\n\n.. code-block:: sh\n\n    crane --up 3", True),
        ("\n- oil it\n- paint it", True),
        ("\n\n```\ncrane\n```", True),
        ("\n\n" + "long " * 200, False),
    ],
)
def test_what_a_sentence_introduces_is_quoted_with_it(monkeypatch, block, quoted):
    monkeypatch.setattr(f"{QUOTING}.query_likelihoods", lambda *of: (np.zeros(len(of[3])), 1))
    monkeypatch.setattr(f"{QUOTING}.answer_spans", lambda *of: ([None] * len(of[3]), 0))
    text = SENTENCE.replace("winter, ", "winter,\n") + block
    listed = candidates("move to winter", [found(f"{text}\n\nIt is red.")], lambda word: 1.0)
    chosen, _, _ = best_sentence(None, None, "move", listed)
    assert chosen.text == (SENTENCE + block if quoted else SENTENCE)


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
    scores, passes = query_likelihoods(model, tokenizer, "Who founded the town?", sentences)
    assert passes == 2  # the short ones have one of their own
    for sentence, score in zip(sentences, scores, strict=True):
        before = tokenizer(f"{sentence}\nQuestion:")["input_ids"]
        question = tokenizer(" Who founded the town?")["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([before + question])).logits[0]
        log_p = logits.log_softmax(-1)[len(before) - 1 : -1]
        assert score == pytest.approx(float(log_p[range(len(question)), question].sum()), abs=1e-3)


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [
        ([], []),
        ([9], [[0]]),
        ([10, 200], [[0], [1]]),
        ([12, 10, 11], [[1, 2, 0]]),
        ([100, 10, 90, 11], [[1, 3], [2, 0]]),
        ([5] * 9, [[*range(8)], [8]]),
    ],
)
def test_texts_of_about_one_length_share_a_batch(lengths, batches):
    assert _batches(lengths) == batches


def test_the_model_decides_between_sentences_with_the_same_words(model, tokenizer):
    listed = candidates("crane", [found("The crane is old. The crane is red.")], lambda word: 0.0)
    scores, _ = query_likelihoods(model, tokenizer, "crane", [row.read for row in listed])
    best = listed[int(np.argmax(scores))]
    assert best_sentence(model, tokenizer, "crane", listed) == (best, None, 1)
    assert best_sentence(model, tokenizer, "crane", []) == (None, None, 0)


def test_the_likeliest_answer_is_weighed_among_the_best_sentences(model, tokenizer, monkeypatch):
    listed = candidates("crane", [found("It is old. It is red. It is big. It is.")], lambda _: 0.0)
    scores, passes = query_likelihoods(model, tokenizer, "crane", [row.read for row in listed])
    second, third = (listed[row] for row in np.argsort(-scores)[1:3])
    score = {second.text: -1e6, third.text: -5e5}

    def spans(model, tokenizer, question, texts, scores):
        assert scores == sorted(scores, reverse=True)
        return [Span(0, 2, score.get(text, -1e7)) for _, text in texts], 5

    monkeypatch.setattr("knn_logits.ask.quoting.answer_spans", spans)
    assert best_sentence(model, tokenizer, "crane", listed) == (third, Span(0, 2, -5e5), passes + 5)


@pytest.mark.parametrize(
    ("gains", "near", "passes"),
    [((4, 0, 0), True, 1), ((3, 2, 0), True, 2), ((0, 0, 2), True, 3), ((3, 1, 1), False, 3)],
)
def test_a_passage_is_read_only_where_the_best_sentence_is_not_clearly_near(
    model, tokenizer, monkeypatch, gains, near, passes
):
    def likelihoods(model, tokenizer, question, texts):
        names = {"It is red.": 0, "a": 1, "b": 2}
        values = [
            float(gains[names[text.strip().split("\n ")[-1]]]) if text else 0.0 for text in texts
        ]
        return np.array(values), 1

    monkeypatch.setattr("knn_logits.ask.quoting.query_likelihoods", likelihoods)
    monkeypatch.setattr("knn_logits.ask.quoting._question_ids", lambda *_: [0, 0])
    listed = candidates("red", [found("It is old. It is red.")], lambda word: 1.0)
    result = is_near(model, tokenizer, "red", listed, ["a", "b"], 0.9)
    assert result == (near, {max(listed, key=lambda row: row.shared).read: gains[0]}, passes)


def test_what_is_known_of_the_best_sentence_is_not_scored_again(model, tokenizer):
    listed = candidates("red", [found("It is old. It is red.")], lambda word: 1.0)
    _, scored, _ = is_near(model, tokenizer, "red", listed, [], 0.0)
    chosen = best_sentence(model, tokenizer, "red", listed, scored)
    assert chosen[0] == best_sentence(model, tokenizer, "red", listed)[0]
    (red,) = scored
    assert best_sentence(model, tokenizer, "red", listed, {red: 1e9})[0].text == "It is red."
    assert best_sentence(model, tokenizer, "red", listed, {red: -1e9})[0].text == "It is old."


@pytest.mark.parametrize("cell", [" | ", "\t", "    "])
@pytest.mark.parametrize("rule", ["", "--- | --- | ---\n"])
def test_a_row_is_read_with_the_names_of_its_columns(cell, rule):
    rows = [("Model", "Weight", "Crew"), ("Tern", "410 kg", "2"), ("Wren", "190 kg", "1")]
    names, *lines = [cell.join(row) for row in rows]
    columns = "  " if cell.isspace() else cell
    text = "Boats on the lake.\n\n" + "\n".join(
        [names, *([rule.strip().replace(" | ", cell)] if rule else []), *lines]
    )
    listed = candidates("Weight of the Wren?", [found(text)], lambda word: 1.0)
    best = listed[0]
    assert (best.lead, best.text) == (columns.join(rows[0]), columns.join(rows[2]))
    assert best.read.endswith(f"{best.lead} {best.text}")
    assert best.shared >= 2
    assert next(row for row in listed if row.text.startswith("Boats")).lead == ""


def test_the_number_of_an_item_is_no_sentence():
    items = ["1. The van leaves at five.", "12. Bread is sold. The rest is given away."]
    assert sentences_of("\n".join(items)) == [
        items[0],
        "12. Bread is sold.",
        "The rest is given away.",
    ]


def test_the_options_of_a_directive_in_markdown_are_no_sentences():
    text = "```{code-block} python\n:caption: test_hello.py\n:name: x\nrunner = CliRunner()\n```"
    assert not any("caption" in row or ":name:" in row for row in sentences_of(text))
