"""From a request to text and trace, without a page."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from knn_logits import KNNLogitsProcessor, build_datastore, explain, remove_documents
from knn_logits.errors import ConfigError, LimitError
from knn_logits.limits import Deadline, Limits
from knn_logits_app.library import Library, sentences
from knn_logits_app.requests import Lookup, RequestError, friendly, lookup_of, writing_of
from knn_logits_app.session import Session

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
        ({"new_tokens": 1.5}, "integer"),
        ({"seed": -1}, "seed"),
        ({"sampling_temperature": float("nan")}, "sampling_temperature"),
        ({"top_p": float("inf")}, "top_p"),
        ({"seed": 10**400}, "seed"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(session, settings, message):
    with pytest.raises((RequestError, LimitError)) as caught:
        run(session, **settings)
    line = friendly(caught.value)
    assert message in line
    assert "\n" not in line


@pytest.mark.parametrize("stores", [None, [], [7], {"a": 1}, ["a"] * 9])
def test_datastores_that_make_no_sense_are_refused(stores):
    with pytest.raises((RequestError, LimitError)):
        lookup_of(stores, {})


def test_an_unexpected_error_tells_nothing():
    assert "secret" not in friendly(RuntimeError("secret"))
    assert "/srv" not in friendly(ConfigError("the folder /srv/store is bad"))


def test_a_prompt_and_its_answer_must_fit_the_model(library):
    wide = Session(library, Limits(prompt_tokens=256, new_tokens=200))
    with pytest.raises(LimitError, match="context of 256"):
        run(wide, "word " * 100, new_tokens=200)


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
    code = "x = 1\ny = f(x)\n" * 20
    for number, (text, begins) in enumerate(
        ((PEP, "The new hooks can be injected"), (only, "This PEP proposes"))
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
