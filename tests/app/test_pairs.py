"""Encoder-decoder models: the page's session, its functions for programs, and a visit."""

import json
from dataclasses import replace

import httpx
import pytest
from conftest import PAIRS

from app.conftest import HOSTILE_SOURCE, PATIENCE
from app.test_raw_requests import call, generating, outcome, refused
from app.test_session import last
from knn_logits import Datastore, Deadline, LimitError, Limits, explain, translate
from knn_logits_app import views
from knn_logits_app.requests import Lookup, RequestError, friendly, writing_of
from knn_logits_app.session import Session
from knn_logits_app.work import measure
from knn_logits_app.your_text import build_steps, documents_of

CRANE = Lookup(("crane",))
SOURCE, TARGET = PAIRS[1]
SOURCES, TARGETS = ("\n".join(column) for column in zip(*PAIRS, strict=True))


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


def test_a_pair_is_explained_as_the_library_does(pair_session, pair_memory):
    found = pair_session.explain(TARGET, CRANE, source=SOURCE)
    store = pair_memory.stores["crane"]
    (expected,) = explain(
        pair_memory.model, pair_memory.tokenizer, store, TARGET, source=SOURCE, max_neighbors=3
    )
    assert [replace(one, candidates=[]) for one in found.trace[0].tokens] == expected.tokens[:-1]
    assert found.text == TARGET
    for token in found.trace[0].tokens:
        mine = next(one for one in token.candidates if one.token_id == token.token_id)
        assert mine.p == pytest.approx(token.p, abs=1e-4)


def test_a_source_too_long_is_refused_and_never_cut(pair_memory):
    wide = Session(pair_memory, Limits(prompt_tokens=1000, new_tokens=1000))
    with pytest.raises(LimitError, match="the model's context is only 64"):
        run(wide, "The crane lifts a crate. " * 30)
    with pytest.raises(LimitError, match="context is only 64"):
        run(wide, new_tokens=64)
    with pytest.raises(LimitError, match="the model's context is only 64"):
        wide.explain(TARGET, CRANE, source="The crane lifts a crate. " * 30)
    with pytest.raises(LimitError, match="context of 64"):
        wide.explain(TARGET * 30, CRANE, source=SOURCE)
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


def test_a_source_is_asked_for_where_there_is_one_only(pair_session, session, library):
    with pytest.raises(RequestError, match="needs a source text"):
        pair_session.explain(TARGET, CRANE)
    with pytest.raises(RequestError, match="does not take a source"):
        session.explain("The remedy for E272", Lookup(("manual",)), source=SOURCE)


def test_examples_are_sources_and_the_text_to_explain_is_a_target(pair_memory):
    assert {one.prompt for one in pair_memory.examples} <= {source for source, _ in PAIRS}
    assert (pair_memory.first_source(), pair_memory.sample_passage()) == PAIRS[0]


def test_pairs_are_measured(pair_session, pair_memory):
    found = measure(pair_session, TARGETS, CRANE, SOURCES, Deadline(60))
    assert found.interpolated < found.lm
    assert found.heat is not None
    fewer = TARGETS.rpartition("\n")[0]
    with pytest.raises(RequestError, match="8 sources but 7 targets"):
        measure(pair_session, fewer, CRANE, SOURCES, Deadline(60))
    with pytest.raises(RequestError, match="box of the sources is empty"):
        measure(pair_session, TARGETS, CRANE, None, Deadline(60))


def test_pairs_of_ones_own_are_built_and_used(pair_session, pair_memory, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"source": "A lamp.", "target": "Eine Lampe."}\n')
    documents, skipped = documents_of(
        pair_session,
        [str(rows)],
        "Ein Rad.\n\nEine Stadt.",
        pairs=True,
        sources="A wheel.\n\nA town.",
    )
    assert skipped == 0
    assert [(one.source, one.text) for one in documents] == [
        ("A lamp.", "Eine Lampe."), ("A wheel.", "Ein Rad."), ("A town.", "Eine Stadt."),
    ]  # fmt: skip
    *_, folder = build_steps(pair_session, documents, tmp_path / "room", Deadline(60))
    own = {"your text": Datastore(folder)}
    wanted = writing_of("A town.", Lookup(("your text",)), new_tokens=20)
    found = last(pair_session.write(wanted, Deadline(60), own))["knn"]
    assert found.text == "Eine Stadt."
    assert found.trace[0].tokens[0].neighbors[0].title == "Line 3"


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ("A wheel.\nA town.", "Ein Rad.", "2 sources but 1 targets"),
        ("A wheel.\n\nA town.", "Ein Rad.\nEin Tag.\nEine Stadt.", "Line 2 is empty"),
        ("", "Ein Rad.", "box of the sources is empty"),
        ("A wheel.", " ", "box of the targets is empty"),
        ("", "", "no text yet"),
    ],
)
def test_lines_without_another_are_refused(pair_session, sources, targets, message):
    with pytest.raises(RequestError) as caught:
        documents_of(pair_session, [], targets, pairs=True, sources=sources)
    assert message in friendly(caught.value)


def test_a_file_without_pairs_is_refused_in_one_line(pair_session, tmp_path):
    for name, content in (("a.txt", "Ein Rad."), ("b.jsonl", '{"text": "Ein Rad."}\n')):
        (tmp_path / name).write_text(content)
        with pytest.raises(RequestError, match='a "source" and a "target"'):
            documents_of(pair_session, [str(tmp_path / name)], "", pairs=True)


@pytest.fixture(scope="module")
def client(pair_url):
    with httpx.Client(base_url=pair_url, timeout=PATIENCE) as found:
        yield found


def test_programs_write_explain_and_evaluate(client):
    answer = call(client, "generate", *generating(SOURCE, compare=True, new_tokens=30))
    kind, (content,) = outcome(client, answer, "generate")
    assert (kind, content["text"], content["prompt"]) == ("complete", TARGET, SOURCE)
    assert content["text_without_knn"] != TARGET
    assert content["tokens"][0]["neighbors"][0]["source"] == SOURCE
    answer = call(client, "explain", SOURCE, TARGET, None, None, None, None, 3)
    kind, (content,) = outcome(client, answer, "explain")
    assert (kind, content["source"], content["text"]) == ("complete", SOURCE, TARGET)
    assert "".join(one["token"] for one in content["tokens"]).strip() == TARGET
    answer = call(client, "evaluate", SOURCES, TARGETS, None, None, None, None)
    kind, (content,) = outcome(client, answer, "evaluate")
    assert kind == "complete"
    assert content["interpolated"] < content["lm"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("generate", generating("")),
        ("generate", generating("The crane lifts a crate. " * 30)),
        ("generate", generating(SOURCE, new_tokens=60)),
        ("explain", [SOURCE, "", None, None, None, None, 3]),
        ("explain", [None, TARGET, None, None, None, None, 3]),
        ("explain", [TARGET, None, None, None, None, 3]),
        ("explain", ["crane " * 90, TARGET, None, None, None, None, 3]),
        ("evaluate", [SOURCES, TARGET, None, None, None, None]),
        ("evaluate", [SOURCES, ["a list"], None, None, None, None]),
        ("evaluate", [TARGETS, None, None, None, None]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_programs_cannot_ask_for_is_one_line(client, name, data):
    text = refused(call(client, name, *data), 400)
    assert len(text.splitlines()) == 1


def test_tools_name_the_source(client):
    listed = client.get("/gradio_api/info").json()["named_endpoints"]
    names = {name: [one["parameter_name"] for one in content["parameters"]] for name, content in
             listed.items()}  # fmt: skip
    assert names["/explain"][:2] == ["source", "text"]
    assert names["/evaluate"][:2] == ["sources", "targets"]


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
    one.tab("Explain")
    page.locator("#explain-source textarea").fill(HOSTILE_SOURCE)
    page.locator("#explain-text textarea").fill("Das Schild ist leer.")
    page.locator("#explain").click()
    one.fresh("#explained", ".kl-foot span")
    assert HOSTILE_SOURCE in page.locator("#explained .kl-panel:visible").inner_text()
    one.tab("Your text")
    page.locator("#own-sources textarea").fill("A wheel.\nA town.")
    page.locator("#own-text textarea").fill("Ein Rad.\nEine Stadt.")
    one.build()
    assert "2 documents" in page.locator("#built").text_content()
    one.tab("Evaluate")
    page.locator("#evaluate-sources textarea").fill(SOURCES)
    page.locator("#evaluate-text textarea").fill(TARGETS)
    page.locator("#evaluate").click()
    page.wait_for_selector("#evaluated .kl-figures")
    assert page.evaluate("window.pwned") is None
