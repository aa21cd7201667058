"""Encoder-decoder models: the page's session, and a visit."""

import json

import pytest
from conftest import PAIRS

from app.conftest import HOSTILE_SOURCE
from app.test_session import last
from knn_logits import translate
from knn_logits.errors import LimitError
from knn_logits.limits import Deadline, Limits
from knn_logits_app import views
from knn_logits_app.requests import Lookup, writing_of
from knn_logits_app.session import Session

CRANE = Lookup(("crane",))
SOURCE, TARGET = PAIRS[1]


def run(session, source=SOURCE, lookup=CRANE, deadline=None, **settings):
    wanted = writing_of(source, lookup, **{"new_tokens": 40, **settings})
    return last(session.write(wanted, deadline or Deadline(60)))


def test_a_source_is_written_to_as_the_library_does(pair_session, pair_memory):
    found = run(pair_session, compare=True)
    store = pair_memory.stores["crane"]
    model, tokenizer = pair_memory.model, pair_memory.tokenizer
    knn, lm = found["knn"], found["lm"]
    assert knn.text == TARGET
    assert [knn.text] == translate(model, tokenizer, [SOURCE], store, max_new_tokens=40)
    assert [lm.text] == translate(model, tokenizer, [SOURCE], max_new_tokens=40)
    assert knn.prompt == lm.prompt == ""
    # No token that starts or ends the decoder's text is a word.
    assert len(knn.words) == len(knn.trace[0].tokens) == knn.tokens
    assert not {token.token_id for token in knn.trace[0].tokens} & {0, 1}
    for piece, token in zip(knn.words, knn.trace[0].tokens, strict=True):
        assert piece.share == pytest.approx(token.influence, abs=2e-3)
        assert any(one.p == pytest.approx(token.p, abs=1e-4) for one in token.candidates)
    near = knn.trace[0].tokens[0].neighbors[0]
    assert (near.source, near.store) == (SOURCE, "crane")


def test_the_answer_comes_word_by_word(pair_session, monkeypatch):
    monkeypatch.setattr("knn_logits_app.session.FRAME_SECONDS", 0.0)
    wanted = writing_of(SOURCE, CRANE, new_tokens=40)
    frames = [one["knn"] for one in pair_session.write(wanted, Deadline(60))]
    assert len(frames) > 2
    assert all(TARGET.startswith(one.text) and not one.prompt for one in frames)
    side = json.loads(views.frame({"knn": frames[-1]}, {}))["sides"]["knn"]
    assert SOURCE in json.dumps(side["trace"], ensure_ascii=False)
    assert "Winde" in "".join(one["token"] for one in side["trace"]["tokens"])
    assert "<" not in "".join(one["token"] for one in side["trace"]["tokens"])


def test_a_source_too_long_is_refused_and_never_cut(pair_memory):
    wide = Session(pair_memory, Limits(prompt_tokens=1000, new_tokens=1000))
    with pytest.raises(LimitError, match="the model's context is only 64"):
        run(wide, "The crane lifts a crate. " * 30)
    with pytest.raises(LimitError, match="context is only 64"):
        run(wide, new_tokens=64)
    narrow = Session(pair_memory, Limits(prompt_tokens=5, new_tokens=5))
    for settings in ({"new_tokens": 4}, {"source": "crane", "new_tokens": 6}):
        with pytest.raises(LimitError, match="the limit is"):
            run(narrow, **settings)
    long = run(wide, new_tokens=63, lookup=None)["lm"]
    assert long.tokens == 63


def test_it_ends_when_its_time_is_up_or_somebody_stops_it(pair_session):
    assert run(pair_session, deadline=Deadline(0.0))["knn"].stopped == "the time is up"
    over = Deadline(60)
    over.cancel()
    assert run(pair_session, deadline=over, lookup=None)["lm"].stopped == "stopped"


def test_examples_are_sources(pair_memory):
    assert {one.prompt for one in pair_memory.examples} <= {source for source, _ in PAIRS}


def test_a_visitor_sees_what_a_word_was_written_to(visit, pair_url):
    one = visit(url=pair_url)
    page = one.page
    assert "a sentence to translate" in page.locator("#prompt").inner_text()
    one.write(SOURCE)
    answer = page.locator("#answers .kl-side-knn .kl-text")
    assert answer.inner_text() == TARGET
    page.locator("#answers .kl-w[role=button]", has_text="Winde").click()
    panel = page.locator("#answers .kl-panel:visible")
    if not panel.count():  # it was open already
        page.locator("#answers .kl-w[role=button]", has_text="Winde").click()
    assert SOURCE in panel.locator(".kl-read").first.inner_text()
    assert "Winde" in panel.locator("mark").first.inner_text()
    # A source is text, whatever it holds.
    one.write(HOSTILE_SOURCE)
    assert answer.inner_text() == "Das Schild ist leer."
    read = page.locator("#answers .kl-panel:visible .kl-read").first
    assert HOSTILE_SOURCE in read.inner_text()
    assert page.locator("#answers img").count() == 0
    # The other tabs need a model that continues texts.
    assert page.get_by_role("tab").all_inner_texts() == ["Generate", "About"]
    assert page.evaluate("window.pwned") is None
