"""Questions answered from documents: quoted, written, not said, or by the model alone."""

import json
import shutil

import pytest
import torch
from conftest import TEXTS

import knn_logits
from knn_logits.ask.answer import ALONE, NOT_SAID
from knn_logits.ask.naming import sources_of_words
from knn_logits.ask.prompting import reading_of
from knn_logits.ask.ranking import Ranking
from knn_logits.ask.spans import Span
from knn_logits.cli.ask import answer_text

QUESTION = "Which queen founded the town of Oldenport?"


@pytest.fixture
def asking(model, tokenizer, store):
    def make(stores=store, memory=None, **settings):
        memory = knn_logits.Memory(model, stores, **(memory or {}))
        config = knn_logits.AskConfig(**{"max_new_tokens": 12, "least_gain": -1e9, **settings})
        return knn_logits.Asking(model, tokenizer, memory, config)

    return make


def test_a_sentence_is_quoted_and_each_word_has_its_source(asking):
    answer = asking().answer(QUESTION)
    assert answer.text == TEXTS[2]
    assert answer.answered
    assert answer.near
    assert answer.quoted
    assert answer.note == ""
    assert "".join(token.token for token in answer.tokens) == TEXTS[2]
    assert {token.source for token in answer.tokens} == {0}
    assert answer.passages[0].document == "2"
    assert [row.effect is None for row in answer.passages] == [False, True, True]
    assert [row.read for row in answer.passages] == [True, False, False]


def test_a_quotation_has_its_source_also_where_the_model_cannot_read_it(asking, monkeypatch):
    """The passage does not fit into the model's context beside the answer."""
    monkeypatch.setattr("knn_logits.ask.asking.context_length", lambda _: 70)
    answer = asking().answer(QUESTION)
    assert answer.text == TEXTS[2]
    assert [(row.read, row.effect) for row in answer.passages[:2]] == [(True, None), (False, None)]
    assert answer.passages[0].document == "2"


def test_the_words_that_answer_are_marked_or_alone(asking, monkeypatch):
    words = "Maira"
    first = TEXTS[2].index(words)

    def spans(model, tokenizer, question, texts, scores):
        at = [text.find(words) for _, text in texts]
        return [Span(start, start + len(words), 0.0) if start >= 0 else None for start in at], 3

    monkeypatch.setattr("knn_logits.ask.quoting.answer_spans", spans)
    answer = asking().answer(QUESTION)
    assert (answer.text, answer.sentence) == (TEXTS[2], TEXTS[2])
    assert answer.span == (first, first + len(words))
    assert answer.short == words
    (bold,) = answer_text(answer).spans
    assert (bold.start, bold.end, bold.style) == (*answer.span, "bold")
    answer = asking(words="span").answer(QUESTION)
    assert (answer.text, answer.short, answer.sentence) == (words, words, TEXTS[2])
    assert answer.quoted
    assert answer_text(answer).spans == []
    assert {token.source for token in answer.tokens} == {0}
    assert answer.passages[0].document == "2"


def test_effects_are_differences_of_single_passes(asking, model, tokenizer):
    answer = asking(words="write", read=2).answer(QUESTION)
    read = [row for row in answer.passages if row.effect is not None]
    assert len(read) == 2
    assert answer.passes > 3

    def log_p(passages):
        text = "\n\n".join([*(f"{row.document}\n{row.text}" for row in passages), QUESTION])
        prompt = tokenizer(f"{text}\nAnswer:")["input_ids"]
        ids = [token.token_id for token in answer.tokens]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1)[range(len(ids)), ids]

    whole = log_p(read)
    for left, row in enumerate(read):
        effect = whole - log_p([other for number, other in enumerate(read) if number != left])
        assert row.effect == pytest.approx(float(effect.sum()), abs=1e-3)
        ours = [
            next(part.effect for part in token.documents if part.document == row.document)
            for token in answer.tokens
        ]
        assert ours == pytest.approx(effect.tolist(), abs=1e-3)
    assert [token.p for token in answer.tokens] == pytest.approx(whole.exp().tolist(), abs=1e-4)


def test_drafts_change_no_word(asking):
    texts = [asking(words="write", draft=draft).answer(QUESTION).text for draft in (True, False)]
    assert texts[0] == texts[1] != ""


def test_what_no_document_says(asking):
    answer = asking(least_shared=0.5).answer("Which queen drank?")
    assert (answer.text, answer.answered, answer.near) == (NOT_SAID, False, True)
    assert answer.sentence in answer.passages[0].text
    assert answer.note == f"The nearest sentence: “{answer.sentence}”"
    assert answer.passages
    assert all(row.effect is None for row in answer.passages)


def test_a_code_that_no_passage_names_is_answered_by_none(asking):
    asking = asking(least_shared=0.0)
    assert asking.answer("Which queen founded the town of Oldenport?").answered
    answer = asking.answer("Which queen founded the town of Oldenport, QN-3?")
    assert (answer.text, answer.near) == (NOT_SAID, True)


def test_a_question_may_share_no_word_with_its_answer(asking):
    answer = asking(least_shared=0.0).answer("Which queen drank?")
    assert answer.answered
    assert answer.text in TEXTS[2] + TEXTS[3]
    assert asking(least_shared=1.0).answer("Which queen drank?").text == NOT_SAID


def test_a_passage_that_matches_too_little_is_no_answer(asking):
    question = "Which queen founded the town of Oldenport?"
    match = asking().match(question)
    assert match > asking().shared(question)
    assert match > asking().match("Which queen of Oldenport counted the photons?") > 0
    assert asking().match("of the") == 0.0
    assert asking(least_match=match).answer(question).answered
    assert asking(least_match=match + 0.01).answer(question).text == NOT_SAID


@pytest.mark.parametrize(("score", "answered"), [(-1.0, True), (-3.0, False)])
def test_a_sure_answer_needs_fewer_words_of_the_question(asking, monkeypatch, score, answered):
    def spans(model, tokenizer, question, texts, scores):
        return [Span(0, 3, score) for _ in texts], 3

    question = "Which queen drank of Oldenport?"
    share = asking().shared(question)
    assert 0 < share < 1
    monkeypatch.setattr("knn_logits.ask.quoting.answer_spans", spans)
    assert asking(least_shared=share).answer(question).answered is answered
    # Yes or no is no part of a sentence, however sure the model is.
    whether = "Did the queen drink of Oldenport?"
    share = asking().shared(whether)
    assert asking(least_shared=share).answer(whether).answered
    assert not asking(least_shared=share + 0.01).answer(whether).answered


def test_a_passage_is_near_that_makes_the_question_likelier(asking, model, tokenizer):
    def log_p(text):
        before = tokenizer(f"{text}\nQuestion:")["input_ids"]
        question = tokenizer(f" {QUESTION}")["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([before + question])).logits[0, len(before) - 1 : -1]
        return float(logits.log_softmax(-1)[range(len(question)), question].sum()) / len(question)

    passages = [reading_of(row.passage) for row in asking().find(QUESTION)]
    gain = max(map(log_p, passages)) - log_p("")
    assert asking(least_gain=gain - 0.01).answer(QUESTION).near
    assert not asking(least_gain=gain + 0.01).answer(QUESTION).near


def test_words_that_are_like_others_make_no_passage_near(asking, monkeypatch):
    monkeypatch.setattr(Ranking, "alike", lambda *_: {"photosynthesi": {"queen": 1.0}})
    asked = asking(max_new_tokens=1)
    assert asked.find("Explain photosynthesis")
    assert not asked.answer("Explain photosynthesis").near


def test_the_model_answers_alone_where_no_passage_is_near(asking, model, tokenizer):
    question = "Explain photosynthesis"
    answer = asking(evidence=False).answer(question)
    ids = tokenizer(f"{question}\nAnswer:", return_tensors="pt")["input_ids"]
    alone = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    text = tokenizer.decode(alone[0, ids.shape[1] :], skip_special_tokens=True)
    assert answer.text == text.strip()
    assert (answer.near, answer.note, answer.passages, answer.tokens) == (False, ALONE, [], [])


def test_documents_that_are_left_out_or_removed_answer_nothing(asking, store, tmp_path):
    assert asking(memory={"exclude": ("2",)}).answer(QUESTION).text != TEXTS[2]
    folder = shutil.copytree(store.folder, tmp_path / "s")
    knn_logits.remove_documents(folder, ["2"])
    assert asking(folder).answer(QUESTION).text != TEXTS[2]


def test_several_datastores_are_asked_but_not_one_of_weight_0(asking, store, build, tmp_path):
    other = build(["The harbour's hours: it opens at seven."], tmp_path / "other")
    question = "When does the harbour open? Its hours"
    assert asking([store, other]).answer(question).text.endswith("it opens at seven.")
    weights = {"weights": [1.0, 0.0]}
    assert "seven" not in asking([store, other], memory=weights).answer(question).text


def test_a_follow_up_question_is_asked_with_the_one_before(asking):
    history = [
        {"role": "user", "content": "What is the oil grade of the crane?"},
        {"role": "assistant", "content": "Nine."},
    ]
    ranked = asking().answer("And what does it lift?", history).passages
    assert ranked
    assert "crane" in ranked[0].text


def test_a_follow_up_question_is_answered_for_its_own_words(asking, monkeypatch):
    chosen = []

    def first(model, tokenizer, question, listed, known):
        assert not known
        chosen.append((question, listed))
        return listed[0], None, 1

    monkeypatch.setattr("knn_logits.ask.asking.best_sentence", first)
    history = [{"role": "user", "content": "Which queen founded the town of Oldenport?"}]
    asking(least_shared=0.0).answer("And when did they flood it?", history)
    question, listed = chosen[0]
    assert question == "And when did they flood it?"
    assert listed[0].text == TEXTS[3]


@pytest.mark.parametrize(
    ("before", "question", "answered"),
    [
        ("Who paints the southern palace?", "And when did they flood it?", True),
        ("Who paints the southern palace?", "And when did they sail it?", False),
        (QUESTION, "And when did they sail it?", True),
        (QUESTION, "And the ferry to Morvik?", False),
        (QUESTION, "And the flood?", True),
    ],
)
def test_a_follow_up_question_is_answered_by_its_own_words(asking, before, question, answered):
    history = [{"role": "user", "content": before}]
    assert asking().answer(question, history).answered is answered


def test_a_question_that_is_too_long_or_empty_is_refused(asking):
    with pytest.raises(knn_logits.ConfigError, match="shorten the question"):
        asking().answer("photosynthesis " * 200)
    with pytest.raises(knn_logits.ConfigError, match="empty"):
        asking().answer(" ")
    with pytest.raises(knn_logits.ConfigError, match="passages"):
        knn_logits.AskConfig(passages=0)


def test_a_word_is_named_after_the_passage_that_shares_most_with_what_is_around_it():
    passages = ["The crane is red and old.", "The crane lifts crates of oil at noon."]
    words = ["The ", "crane ", "lifts ", "crates, ", "and ", "the ", "crane ", "is ", "red."]
    named = sources_of_words([*words, "Nobody "], "?", passages, lambda word: 1.0)
    assert named == [None, 1, 1, 1, None, None, 0, None, 0, None]


def test_the_command_answers_one_question_and_a_file(
    run, model_folder, store, tmp_path, near_passages
):
    done = run("ask", model_folder, str(store.folder), QUESTION)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == TEXTS[2]
    assert "[2" in done.out
    assert "(Reading it makes the answer" in done.out
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"id": 7, "question": QUESTION}) + "\n\n" + '{"question": "E42?"}\n')
    done = run("ask", model_folder, str(store.folder), "--questions", str(file), "--json")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [(row.get("id"), row["answered"]) for row in rows] == [(7, True), (None, True)]
    assert set(rows[0]) == {
        "id", "question", "text", "answered", "near", "quoted", "tokens", "passages", "passes",
        "seconds", "sentence", "span", "note",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["{store}"], "--questions FILE"),
        (["{store}", " "], "the question is empty"),
        (["{store}", "--questions", "no.jsonl"], "cannot read the questions in no.jsonl"),
        (["{store}", "--questions", "{bad}"], "line 2 of"),
    ],
)
def test_bad_questions_are_refused_in_one_line(run, model_folder, store, tmp_path, arguments, line):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "a"}\n{"frage": "b"}\n')
    given = [part.format(store=store.folder, bad=bad) for part in arguments]
    done = run("ask", model_folder, *given)
    assert done.code == 1
    assert line in done.err
    assert done.err.count("\n") <= 2


HANDBOOK = """# Heron kettle

## Descaling

Descale the kettle every five weeks with citric acid. Rinse it three times afterwards.

## Faults

Q: Why does the blue lamp blink?
A: The blue lamp blinks when the tank is empty.

## Prices

Filter HK-12: 14 crowns
Filter HK-30: 23 crowns
"""


@pytest.mark.instruct
def test_a_real_model_answers_from_a_handbook_and_leaves_the_rest_alone(instruct, tmp_path):
    model, tokenizer = instruct
    store = knn_logits.build_datastore(
        model, tokenizer, [HANDBOOK], tmp_path / "s", calibrate=False
    )
    asking = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, store))
    for question, words in (
        ("How often must I descale the kettle?", "every five weeks"),
        ("Why is the blue lamp blinking?", "the tank is empty"),
        ("What does the filter HK-30 cost?", "23 crowns"),
    ):
        answer = asking.answer(question)
        assert words in answer.text
        assert answer.answered
        assert answer.passages[0].effect > 5
    answer = asking.answer("What is the capital of France?")
    assert "Paris" in answer.text
    assert answer.note == ALONE
