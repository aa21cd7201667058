"""From a request to text and trace, without a page."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from knn_logits import KNNLogitsProcessor, Trace, build_datastore, explain, remove_documents
from knn_logits.engine.pieces import Pieces
from knn_logits.errors import ConfigError, LimitError
from knn_logits.evidence.records import Candidate, SequenceTrace, TokenTrace
from knn_logits.limits import Deadline, Limits
from knn_logits_app.decoding import samplers
from knn_logits_app.library import Library, sentences
from knn_logits_app.requests import Lookup, RequestError, friendly, lookup_of, writing_of
from knn_logits_app.session import END, Session, words_only
from knn_logits_app.tab_evaluate import measured_html

MANUAL = Lookup(("manual",))
PROMPT = "The right position of K-5750 is"


def last(frames):
    answers = None
    for answers in frames:  # noqa: B007
        pass
    return answers


def run(session, prompt=PROMPT, lookup=MANUAL, **settings):
    wanted = writing_of(prompt, lookup, **{"new_tokens": 12, **settings})
    return last(session.write(wanted, Deadline(60)))


def by_the_library(library, prompt):
    """What the library alone writes."""
    ids = library.tokenizer(prompt, return_tensors="pt")["input_ids"]
    with KNNLogitsProcessor(library.model, library.stores["manual"]) as knn:
        output = library.model.generate(
            ids, do_sample=False, max_new_tokens=12, pad_token_id=0, logits_processor=[knn]
        )
        return knn.trace(output, library.tokenizer)[0]


def test_the_answer_and_its_shares_are_the_librarys(session, library):
    found = run(session)["knn"]
    expected = by_the_library(library, PROMPT)
    tokens = [one for one in expected.tokens if one.token_id != 0]
    assert found.text == "".join(one.token for one in tokens)
    assert found.trace[0].text == found.text
    # The live view, which knows no neighbors, colours as the trace does.
    for piece, token in zip(found.words, tokens, strict=True):
        assert piece.share == pytest.approx(token.influence, abs=2e-3)
        assert piece.changed is (token.by_model is not None)
    named = {one.store for token in found.trace[0].tokens for one in token.neighbors}
    assert named == {"manual"}


def test_candidates_hold_both_probabilities_of_the_chosen_token(session):
    found = run(session)["knn"]
    assert len(found.trace[0].tokens) == found.tokens
    for token in found.trace[0].tokens:
        candidates = token.candidates
        mine = next(one for one in candidates if one.token_id == token.token_id)
        assert mine.p == pytest.approx(token.p, abs=1e-4)
        assert mine.p_lm == pytest.approx(token.p_lm, abs=1e-4)
        assert mine.p_knn == pytest.approx(token.p_knn, abs=1e-3)
        assert sum(one.p for one in candidates) <= 1.0 + 1e-5
        assert [one.p for one in candidates] == sorted((one.p for one in candidates), reverse=True)


def test_comparing_writes_what_each_alone_writes(session):
    both = run(session, compare=True)
    assert both["lm"].text == run(session, lookup=None)["lm"].text
    assert both["knn"].text == run(session)["knn"].text
    assert both["lm"].text != both["knn"].text
    assert both["lm"].trace is None


def test_explaining_is_the_librarys_explain(session, library):
    text = "The remedy for E272 is to test the main fuse."
    found = session.explain(text, MANUAL)
    expected = explain(library.model, library.tokenizer, library.stores["manual"], text)[0]
    assert [one.influence for one in found.trace[0].tokens] == pytest.approx(
        [one.influence for one in expected.tokens], abs=1e-6
    )
    for token in found.trace[0].tokens:
        assert 5 <= len(token.candidates) <= 6
        for one in token.candidates:
            if one.token_id == token.token_id:
                assert one.p_knn == pytest.approx(token.p_knn, abs=1e-3)
                assert one.p == pytest.approx(token.p, abs=1e-4)


def test_a_seed_means_the_same_text_whoever_else_writes(session):
    settings = {"sample": True, "new_tokens": 20, "sampling_temperature": 2.5}
    texts = [run(session, seed=3, **settings)["knn"].text for _ in range(2)]
    others = {seed: run(session, seed=seed, **settings)["knn"].text for seed in range(4, 8)}
    with ThreadPoolExecutor(5) as threads:
        found = {seed: threads.submit(run, session, seed=seed, **settings) for seed in range(3, 8)}
        together = {seed: one.result()["knn"].text for seed, one in found.items()}
    assert texts[0] == texts[1] == together[3]
    assert {**others, 3: texts[0]} == together
    assert len(set(together.values())) > 1


def test_traces_of_many_visitors_are_not_mixed(session):
    prompts = [f"{words} E{number}" for words in ("For", "To clear", "After") for number in
               (272, 728, 176)]  # fmt: skip
    alone = {prompt: run(session, prompt)["knn"] for prompt in prompts}
    with ThreadPoolExecutor(len(prompts)) as threads:
        found = {prompt: threads.submit(run, session, prompt) for prompt in prompts}
    for prompt in prompts:
        assert found[prompt].result()["knn"].trace.to_dict() == alone[prompt].trace.to_dict()


def test_noise_draws_from_the_tokens_of_top_p():
    scores = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])) + 3.0
    *warpers, sampler = samplers(1, 1.0, 0.7)
    for warper in warpers:
        scores = warper(None, scores)
    drawn = {int(sampler(torch.zeros(1, place), scores).argmax()) for place in range(500)}
    assert drawn == {0, 1}


def test_a_stopped_text_keeps_its_sources(session, library):
    deadline = Deadline(60)
    wanted = writing_of("The", MANUAL, new_tokens=120)
    answers = None
    for answers in session.write(wanted, deadline):
        if answers["knn"].tokens > 2:
            deadline.cancel()
    found = answers["knn"]
    assert found.done
    assert found.stopped == "stopped"
    assert 2 < found.tokens < 120
    assert len(found.trace[0].tokens) == found.tokens


def test_a_text_ends_when_its_time_is_up(session, library):
    found = last(session.write(writing_of("The", None, new_tokens=120), Deadline(0.05)))
    assert found["lm"].stopped == "the time is up"


def test_nobody_reading_on_ends_the_writing(session, library):
    deadline = Deadline(60)
    frames = session.write(writing_of("The", MANUAL, new_tokens=120), deadline)
    next(frames)
    frames.close()
    assert deadline.cancelled


def test_one_sentence_is_enough_where_it_is_wanted(session):
    text = run(session, new_tokens=40, sentence=True)["knn"].text
    assert text.endswith(".")
    assert text.count(".") == 1


def test_pieces_never_cut_a_character(library):
    text = "Grüße, 你好 👍🏽."
    ids = library.tokenizer(text)["input_ids"]
    pieces = Pieces(library.tokenizer, ids[:1])
    shown = library.tokenizer.decode(ids[:1]) + "".join(pieces.add(one) for one in ids[1:])
    assert shown == text
    assert "\ufffd" not in shown


def test_the_model_is_as_it_was(session, library):
    run(session, compare=True)
    assert not library.model._forward_pre_hooks
    assert not any(one._forward_pre_hooks or one._forward_hooks for one in library.model.modules())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": "  "}, "empty"),
        ({"prompt": 7}, "empty"),
        ({"prompt": "a\ud800"}, "incomplete character"),
        ({"prompt": "x" * 30_000}, "the limit is"),
        ({"prompt": "word " * 300}, "tokens"),
        ({"new_tokens": 10_000}, "the limit is"),
        ({"new_tokens": 1.5}, "whole"),
        ({"new_tokens": True}, "number"),
        ({"seed": -1}, "seed"),
        ({"sampling_temperature": float("nan")}, "between"),
        ({"top_p": float("inf")}, "between"),
        ({"seed": 10**400}, "between"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(session, settings, message):
    with pytest.raises((RequestError, LimitError)) as caught:
        run(session, **settings)
    line = friendly(caught.value)
    assert message in line
    assert "\n" not in line
    assert not line[0].islower()


@pytest.mark.parametrize("stores", [None, [], [7], {"a": 1}, ["a"] * 9])
def test_datastores_that_make_no_sense_are_refused(stores):
    with pytest.raises((RequestError, LimitError)):
        lookup_of(stores, {})


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"k": 0}, "k must be an integer"), ({"k": 10**9}, "k must be an integer"),
        ({"k": "many"}, "k must be a number"), ({"lmbda": 1.01}, "λ must lie between 0 and 1"),
        ({"temperature": 0}, "τ must be above 0"), ({"temperature": float("inf")}, "τ must be"),
    ],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_refused(settings, line):
    with pytest.raises(RequestError) as caught:
        lookup_of(["a"], settings)
    assert friendly(caught.value).startswith(line)


def test_only_datastores_that_are_there_are_found(session):
    for name in ("../../etc", "/etc/passwd", "Manual", "your text"):
        with pytest.raises(RequestError, match="datastore is not available"):
            run(session, lookup=Lookup((name,)))


def test_an_unexpected_error_tells_nothing():
    assert "secret" not in friendly(RuntimeError("secret"))
    assert "/srv" not in friendly(ConfigError("the folder /srv/store is bad"))


def test_a_memory_of_any_model_names_its_datastores(library):
    store = library.stores["manual"]
    made = Library.of("mine", library.model, library.tokenizer, [store, store])
    assert list(made.stores) == [store.name, f"{store.name} 2"]
    assert made.context == 256
    assert made.examples[0].prompt
    with pytest.raises(ConfigError):
        Library.of("mine", library.model, library.tokenizer, [])


def test_a_prompt_and_its_answer_must_fit_the_model(library):
    wide = Session(library, Limits(prompt_tokens=256, new_tokens=200))
    with pytest.raises(LimitError, match="context of 256"):
        run(wide, "word " * 100, new_tokens=200)


def test_ten_answers_open_no_index_again(session, library, monkeypatch):
    run(session)
    opened = []
    monkeypatch.setattr("knn_logits.index.opening.open_index", lambda *_, **__: opened.append(1))
    for number in range(10):
        run(session, f"For E{number}")
    text = "The remedy for E272 is to test the main fuse."
    session.explain(text, MANUAL)
    measured_html(session, text, MANUAL, Deadline(60))
    assert not opened


def test_the_end_of_a_text_is_a_candidate_that_can_be_read():
    end = Candidate("<|endoftext|>", 0, 0.7, 0.8, 0.1)
    token = TokenTrace(" on", 5, 0.2, 0.1, 0.3, 0.5, 0.4, candidates=[end])
    last = replace(token, token="<|endoftext|>", token_id=0)
    found = words_only(Trace([SequenceTrace("", [token, last])]), {0})
    assert [one.token for one in found[0].tokens] == [" on"]
    assert [one.token for one in found[0].tokens[0].candidates] == [END]


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("λ must lie between 0 and 1.", "λ must lie between 0 and 1."),
        ("k must be a number.", "k must be a number."),
        ("the text is too long", "The text is too long."),
        ("a text is too long", "A text is too long."),
        ("kiln.pdf cannot be read", "kiln.pdf cannot be read."),
    ],
)
def test_a_line_for_a_visitor_keeps_the_signs_of_settings(message, line):
    assert friendly(RequestError(message)) == line


PEP = """PEP: 302
Title: New Import Hooks
Author: Just van Rossum <just@letterror.com>
Status: Final

Abstract
========

This PEP proposes to add a new set of import hooks that offer better customization.
It must be read. Code that calls ``find_module(name)`` is shown where the hooks are described below.
The new hooks can be injected into the import mechanism by anybody who wants to.

+------+-------+
| Name | Value |
+------+-------+
"""


def test_examples_are_prose(library, tmp_path):
    model, tokenizer = library.model, library.tokenizer
    only = PEP.partition("It must")[0]
    code, short = "x = 1\ny = f(x)\n" * 20, "Too short. It is."
    for number, (text, begins) in enumerate(
        ((PEP, "The new hooks can be injected"), (only, "This PEP proposes"), (short, "Too short"))
    ):
        folder = tmp_path / str(number)
        store = build_datastore(model, tokenizer, [text, code], folder, calibrate=False)
        assert sentences(store, tokenizer, 1)[0].startswith(begins)


def test_a_long_text_is_explained_in_windows(session, library):
    sentence = "The remedy for E272 is to test the main fuse. "
    found = session.explain(sentence * 24, MANUAL)
    assert found.tokens > library.context
    with pytest.raises(LimitError, match="the limit is 800"):
        session.explain(sentence * 400, MANUAL)


def test_a_removed_document_is_gone_from_an_open_page(library, tmp_path):
    texts = ["The mill grinds rye.", "The pump needs oil."]
    store = build_datastore(
        library.model, library.tokenizer, texts, tmp_path / "n", calibrate=False
    )
    opened = Library.of("tiny", library.model, library.tokenizer, [store])
    session, lookup = Session(opened), Lookup(("n",))
    assert not session.stores(lookup)["n"].manifest.removed
    remove_documents(tmp_path / "n", ["0"])
    assert session.stores(lookup)["n"].manifest.removed == (0,)
    assert opened.memory.stores == [opened.store]
