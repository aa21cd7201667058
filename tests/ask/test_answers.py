"""Questions answered from documents: quoted, written, declined, or by the model alone."""

import json
import shutil

import pytest
import torch
from conftest import TEXTS

import knn_logits
from knn_logits.ask.answer import ALONE, NO_ANSWER
from knn_logits.ask.effects import sources_of_words
from knn_logits.ask.messages import questions_of
from knn_logits.ask.ranking import Ranking
from knn_logits.errors import ConfigError

QUESTION = "Which queen founded the town of Oldenport?"
NOWHERE = "Explain photosynthesis"


@pytest.fixture
def asking(model, tokenizer, store):
    def make(stores=store, memory=None, **settings):
        memory = knn_logits.Memory(model, stores, **(memory or {}))
        config = knn_logits.AskConfig(**{"max_new_tokens": 12, **settings})
        return knn_logits.Asking(model, tokenizer, memory, config)

    return make


def test_a_sentence_is_quoted_without_a_pass_of_the_model(asking, model, monkeypatch):
    monkeypatch.setattr(model, "generate", None)
    answer = asking().answer(QUESTION)
    assert answer.text == TEXTS[2]
    assert (answer.answered, answer.quoted, answer.alone) == (True, True, False)
    assert (answer.note, answer.tokens) == ("", [])
    (passage,) = answer.passages
    assert (passage.document, passage.sentence, passage.read) == ("2", TEXTS[2], True)


def test_where_no_passage_answers_the_nearest_sentences_are_shown(asking):
    answer = asking().answer("Which queen drank of the golden river in the morning?")
    assert (answer.text, answer.answered, answer.alone) == (NO_ANSWER, False, False)
    assert 0 < len(answer.passages) <= 3
    assert not any(row.read for row in answer.passages)
    assert answer.note.count("Perhaps: “") == len(answer.passages)
    nothing = asking().answer(NOWHERE)
    assert (nothing.text, nothing.note, nothing.passages) == (NO_ANSWER, "", [])


def test_a_decline_claims_only_that_no_passage_surely_answers(
    asking, model, tokenizer, monkeypatch
):
    declined = tokenizer("No passage answers this.", return_tensors="pt")["input_ids"]
    monkeypatch.setattr(
        model, "generate", lambda input_ids, **_: torch.cat([input_ids, declined], 1)
    )
    for words, question in (("quote", NOWHERE), ("write", QUESTION)):
        answer = asking(words=words).answer(question)
        assert (answer.text, answer.answered) == ("No passage clearly answers this.", False)


def test_the_model_answers_alone_only_if_that_is_asked_for(asking, model, tokenizer):
    answer = asking(outside="model").answer(NOWHERE)
    ids = tokenizer(f"{NOWHERE}\nAnswer:", return_tensors="pt")["input_ids"]
    alone = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    text = tokenizer.decode(alone[0, ids.shape[1] :], skip_special_tokens=True)
    assert answer.text == text.strip()
    assert (answer.alone, answer.note, answer.passages, answer.tokens) == (True, ALONE, [], [])
    assert asking(outside="model").answer(QUESTION).quoted


def test_effects_are_differences_of_single_passes(asking, model, tokenizer):
    answer = asking(words="write", read=2).answer(QUESTION)
    read = answer.passages
    assert len(read) == 2
    told = "Answer from the text above, briefly. If it does not say, write: "
    told += "No passage answers this."

    def log_p(passages):
        text = "\n\n".join([*(f"{row.document}\n{row.text}" for row in passages), ""])
        prompt = tokenizer(f"{text}{told}\n{QUESTION}\nAnswer:")["input_ids"]
        ids = [token.token_id for token in answer.tokens]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1)[range(len(ids)), ids]

    whole = log_p(read)
    for left, row in enumerate(read):
        effect = whole - log_p([other for number, other in enumerate(read) if number != left])
        assert row.effect == pytest.approx(float(effect.sum()), abs=1e-3)
    assert {token.source for token in answer.tokens} <= {None, 0, 1}


def test_a_word_is_named_by_the_passage_that_shares_its_sentence(build, tokenizer, tmp_path):
    texts = ["The crane of Harrow weighs nine tons.", "The pump of Kenmouth weighs two tons."]
    ranking = Ranking(tokenizer, [build(texts, tmp_path / "s")], None)
    answer = "The Harrow crane weighs nine tons. Kenmouth 's pump weighs two tons, and sings."
    words = answer.split()
    named = dict(enumerate(sources_of_words(words, "What do they weigh?", texts, ranking)))
    assert (named[1], named[5], named[6], named[11]) == (0, 0, 1, 1)
    assert named[13] is None


def test_documents_that_are_left_out_or_removed_answer_nothing(asking, store, tmp_path):
    assert asking(memory={"exclude": ("2",)}).answer(QUESTION).text != TEXTS[2]
    folder = shutil.copytree(store.folder, tmp_path / "s")
    knn_logits.remove_documents(folder, ["2"])
    assert asking(folder).answer(QUESTION).text != TEXTS[2]


def test_several_datastores_are_asked(asking, store, build, tmp_path):
    other = build(["The harbour's hours: it opens at seven."], tmp_path / "other")
    question = "When do the harbour hours open?"
    assert asking([store, other]).answer(question).text.endswith("it opens at seven.")


def test_a_follow_up_question_is_asked_with_the_one_before(asking):
    history = [
        {"role": "user", "content": "When was the first harbour crane of Oldenport delivered?"},
        {"role": "assistant", "content": TEXTS[6]},
    ]
    assert asking().answer("Why?", history).text == TEXTS[6]
    assert asking().answer(QUESTION, history).text == TEXTS[2]
    # The last question is answered, not this one.
    assert not asking().answer("Who invented Java?", history).answered


def test_a_follow_up_question_is_answered_by_what_it_names(asking, build, tmp_path):
    texts = ["A seat on deck costs nine crowns.", "Breakfast costs two crowns.", "Cats are banned."]
    asked = asking(build(texts, tmp_path / "s"))
    history = [
        {"role": "user", "content": "What does a seat on deck cost?"},
        {"role": "assistant", "content": texts[0]},
    ]
    assert asked.answer("And breakfast?", history).text == texts[1]
    assert not asked.answer("And a massage?", history).answered
    assert asked.answer("Are cats banned?", history).text == texts[2]


def test_why_alone_shows_the_section_of_the_last_answer(
    asking, build, handbook, tmp_path, monkeypatch
):
    asked = asking(build(list(knn_logits.read_corpus([str(handbook)])), tmp_path / "s"))
    question = "Which acid must I use to descale the kettle every five weeks?"
    first = asked.answer(question)
    assert first.text == "Descale the kettle every five weeks with citric acid."
    history = [{"role": "user", "content": question}, {"role": "assistant", "content": first.text}]
    section = asked.answer("Why?", history)
    assert section.quoted
    assert (first.note, section.note) == ("", "This is the passage around the last answer.")
    assert section.text == first.passages[0].text
    assert "Rinse it three times afterwards." in section.text
    assert asked.answer(question, history).text == first.text
    repeated = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": section.text}]
    assert asked.answer("Why?", history + repeated).text == section.text
    # An encoder finds "Why?" nowhere near the sentence.
    monkeypatch.setattr(Ranking, "margin", staticmethod(lambda found: -1.0))
    assert asked.answer("Why?", history).text == section.text
    assert not asked.answer(question, history).answered


def test_several_questions_are_answered_one_by_one(asking):
    answer = asking().answer(f"{QUESTION} What does error code E42 mean?")
    first, second = answer.text.split("\n\n")
    assert first == f"“{TEXTS[2]}”"
    assert "E42" in second
    assert {row.document for row in answer.passages} >= {"2"}
    mixed = asking().answer(f"{QUESTION} Where do photons sleep?").text
    assert mixed == f"“{TEXTS[2]}”\n\nWhere do photons sleep? {NO_ANSWER}"


def test_questions_that_and_joins_are_answered_as_turns(asking):
    joined = asking().answer("Which queen founded the town and what does error code E42 mean?")
    assert joined.text == asking().answer(f"{QUESTION} What does error code E42 mean?").text
    # A question may refer to the one before it.
    turns = asking().answer(f"{QUESTION} And when was it?")
    assert turns.text == (
        f"“{TEXTS[2]}”\n\nAnd when was it? This is the passage around the last answer. “{TEXTS[2]}”"
    )
    for one in ("When and where did the queen found it?", "Does Queen Maira found walls and what?"):
        assert questions_of(one, None) == [(one, "")]


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        ("Der Hof ist alt. Am 3. Oktober öffnet Dr. Weiß den Hof.", "Wann öffnet Dr. Weiß den Hof?",
         "Am 3. Oktober öffnet Dr. Weiß den Hof."),
        ("花园很大。图书馆早上九点开门。", "图书馆几点开门?", "图书馆早上九点开门。"),
        ("図書館は古い。図書館は九時に開きます。", "図書館は何時に開きますか?",
         "図書館は九時に開きます。"),
        ("बाग़ बड़ा है। पुस्तकालय नौ बजे खुलता है।", "पुस्तकालय कब खुलता है?",
         "पुस्तकालय नौ बजे खुलता है।"),
        ("Ports are open. Each http.Agent keeps sockets. It is old.", "What does http.Agent keep?",
         "Each http.Agent keeps sockets."),
    ],
)  # fmt: skip
def test_sentences_of_all_languages_and_with_names_are_found_whole(
    asking, build, tmp_path, text, question, expected
):
    assert asking(build([text], tmp_path / "s")).answer(question).text == expected


HANDBOOK = """# Heron kettle

Heron Inc. made the kettle on Mt. Ida.

## Descaling

Descale the kettle every five weeks with citric acid. Rinse it three times afterwards.

1. Fill the tank with water.
2. Add one spoon of citric acid.

## Why does the blue lamp blink?

The tank is empty.

## Prices

| filter | price | color |
| --- | --- | --- |
| HK-12 | 14 crowns | red |
|| 9 crowns | turquoise |
| HK-30 | 23 crowns | green |

[1]: https://example.org/filters

Teabell

It rings when the tea is ready.

## Cups

It is light. The kettle fills:

- a pot of coffee
- two cups of tea

## Reset

To reset the kettle, run:

    heron --reset now
"""


@pytest.fixture(scope="module")
def handbook(tmp_path_factory):
    file = tmp_path_factory.mktemp("handbook") / "kettle.md"
    file.write_text(HANDBOOK)
    return file


def test_rows_items_headings_and_code_are_read_as_what_they_are(asking, build, handbook, tmp_path):
    asked = asking(build(list(knn_logits.read_corpus([str(handbook)])), tmp_path / "s"))
    row = asked.answer("What is the price of filter HK-30?")
    assert row.text == "filter: HK-30; price: 23 crowns; color: green"
    (shown,) = row.passages
    assert shown.sentence == row.text
    assert shown.text[slice(*shown.place)] == "| HK-30 | 23 crowns | green |"
    near = asked.answer("Which green queen founded the town of Oldenport?")
    assert near.note.startswith("Perhaps: “filter: HK-30; price: 23 crowns; color: green” [")
    assert near.passages[0].place == shown.place
    assert asked.answer("What is turquoise?").text == "price: 9 crowns; color: turquoise"
    term = asked.answer("What is a teabell?")
    assert term.text == "Teabell\nIt rings when the tea is ready."
    item = asked.answer("How many cups of tea are there?")
    assert item.text == "The kettle fills:\ntwo cups of tea"
    assert item.passages[0].sentence == "two cups of tea"
    assert asked.answer("Why is the blue lamp blinking?").text == "The tank is empty."
    assert "heron --reset now" in asked.answer("How do I reset the kettle?").text
    assert asked.answer("Which spoon of citric acid?").text == "Add one spoon of citric acid."
    mount = asked.answer("On which Mt. did Heron Inc. make the kettle?")
    assert mount.text == "Heron Inc. made the kettle on Mt. Ida."
    assert mount.passages[0].heading == "Heron kettle"


def test_a_question_that_is_empty_or_too_long_to_write_about_is_refused(asking):
    with pytest.raises(ConfigError, match="empty"):
        asking().answer(" ")
    with pytest.raises(ConfigError, match="shorten the question"):
        asking(outside="model").answer("photosynthesis " * 200)
    with pytest.raises(ConfigError, match="read"):
        knn_logits.AskConfig(read=0)


def test_the_command_answers_a_question(run, model_folder, store):
    done = run("ask", model_folder, str(store.folder), QUESTION)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == TEXTS[2]
    assert "[2" in done.out
    assert done.err.count("answered by words alone") == 1
    answer = run("ask", model_folder, str(store.folder), QUESTION, "--json").json
    assert answer["answered"]
    assert set(answer) == {
        "question", "text", "answered", "quoted", "caution", "alone", "tokens", "passages", "note",
    }  # fmt: skip
    assert "then a quoted question" in run.refused("ask", model_folder, store.folder).line
    empty = run.refused("ask", model_folder, store.folder, " ")
    assert "the question is empty" in empty.line


def test_documents_with_questions_and_answers_in_rows_are_asked(run, model_folder, tmp_path):
    file = tmp_path / "faq.jsonl"
    row = {"question": "When does the canteen open?", "answer": "At noon, but not on Sundays."}
    file.write_text(f"{json.dumps(row)}\n" + json.dumps({"text": "The crane is red."}) + "\n")
    done = run("ask", model_folder, str(file), "When does the canteen open?")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == "At noon, but not on Sundays."
    table = tmp_path / "prices.csv"
    table.write_text("filter,price\nHK-12,14 crowns\nHK-30,23 crowns\n")
    done = run("ask", model_folder, str(table), "What is the price of filter HK-30?")
    assert done.out.splitlines()[0] == "filter: HK-30; price: 23 crowns"
    done = run("ask", model_folder, str(table), "What is the name of the price of happiness?")
    assert "\nPerhaps: “filter: HK-" in done.out


@pytest.mark.instruct
def test_a_real_encoder_answers_by_meaning(
    instruct, encoder_folder, handbook, tmp_path, monkeypatch
):
    monkeypatch.setenv("KNN_LOGITS_ENCODER", encoder_folder)
    model, tokenizer = instruct
    documents = list(knn_logits.read_corpus([str(handbook)]))
    store = knn_logits.build_datastore(
        model, tokenizer, documents, tmp_path / "s", store_keys=False, calibrate=False
    )  # fmt: skip
    assert store.manifest.encoder.id == "sentence-transformers/all-MiniLM-L6-v2"
    asking = knn_logits.Asking(model, tokenizer, knn_logits.Memory(model, store))
    for question, words in (
        ("Which company produced the kettle?", "Heron Inc."),
        ("Good morning! What is the cost of the HK-30? Many thanks", "23 crowns"),
        ("I have lost the manual. Why is the blue light flashing?", "The tank is empty"),
    ):
        answer = asking.answer(question)
        assert answer.quoted
        assert words in answer.text
    for question in ("What is the capital of France?", "How fast does the Heron train run?"):
        answer = asking.answer(question)
        assert answer.text == NO_ANSWER
        assert not any(row.read for row in answer.passages)
    # The last question gives a follow-up its meaning, and does not answer in its place.
    question = "What is the cost of the HK-30?"
    history = [("user", question), ("assistant", asking.answer(question).text)]
    history = [{"role": role, "content": content} for role, content in history]
    assert "green" in asking.answer("And which color is it?", history).text
    for follow_up in ("And a massage?", "And the helicopter?", "And a violin?"):
        assert not asking.answer(follow_up, history).answered
    for thanks in ("Thank you so much!", "Thanks!"):
        assert asking.answer(thanks).text == "You are welcome."
    assert asking.answer("Hello").passages == []
