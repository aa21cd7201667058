"""From a request to text and trace, without a page."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from distances import from_distances

from app.conftest import TINY
from knn_logits import (
    Datastore,
    IndexConfig,
    KNNLogitsProcessor,
    build_datastore,
    explain,
    read_corpus,
    remove_documents,
)
from knn_logits.errors import ConfigError, LimitError
from knn_logits.hosting import Deadline, Limits
from knn_logits.mixture.vote import Vote, Weighing, drop_impossible, mix
from knn_logits_app.decoding import SentenceEnd
from knn_logits_app.library import Library, sentences
from knn_logits_app.page_parts import Server
from knn_logits_app.requests import Lookup, RequestError, friendly, writing_of
from knn_logits_app.session import Session, turns_of
from knn_logits_app.tab_generate import first_answer
from knn_logits_app.visitors import Visitors

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


def test_the_first_answer_is_whole_however_slow_the_machine_is(session):
    slow = Session(session.library, replace(session.limits, seconds=0.0))
    sides = json.loads(first_answer(Server(slow, Visitors())))["sides"]
    assert [side["stopped"] for side in sides.values()] == [None, None]
    assert all(side["done"] and side["tokens"] for side in sides.values())


def by_the_library(library, prompt, knn=True):
    """What the library alone writes, or the text of the model alone."""
    ids = library.tokenizer(prompt, return_tensors="pt")["input_ids"]
    how = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
    if not knn:
        written = library.model.generate(ids, **how)[0, ids.shape[1] :]
        return library.tokenizer.decode(written, skip_special_tokens=True)
    with KNNLogitsProcessor(library.model, library.stores["manual"]) as processor:
        output = library.model.generate(ids, **how, logits_processor=[processor])
        return processor.trace(output, library.tokenizer)[0]


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
    assert both["lm"].text == by_the_library(session.library, PROMPT, knn=False)
    assert both["knn"].text == run(session)["knn"].text
    assert both["lm"].text != both["knn"].text
    assert both["lm"].trace is None


def test_a_text_of_lambda_0_is_the_models_own_in_every_case(session, library):
    """Drafts round otherwise, and a memory allows what the model's own settings forbid."""
    off = Lookup(("manual",), {"lmbda": 0.0})
    assert library.model.generation_config.no_repeat_ngram_size == 8
    for row in (TINY / "manual.jsonl").read_text().splitlines()[:6]:
        text = json.loads(row)["text"]
        both = run(session, f"{text[:200]} {text[:120]}", off, compare=True, new_tokens=60)
        assert both["knn"].text == both["lm"].text


def test_a_sentence_ends_where_the_next_one_begins(library, session, tmp_path):
    sentence = "The press weighs 9.4 kilograms, or approx. 20 pounds, and stands on a table."
    documents = [f"{sentence} {more}" for more in ("The lid is red.", "Is it new? Yes.")]
    settings = {"index": IndexConfig("exact"), "k": 8, "lmbda": 1.0, "temperature": 0.01}
    store = build_datastore(library.model, library.tokenizer, documents, tmp_path, **settings)
    wanted = writing_of("The press", Lookup(("mine",)), new_tokens=60, sentence=True)
    found = last(session.write(wanted, Deadline(60), {"mine": store}))["knn"]
    assert f"The press{found.text}" == sentence
    assert found.trace[0].text == found.text


def test_the_number_of_a_list_ends_no_sentence(library):
    def ends(prompt, text):
        prompt, ids = (
            library.tokenizer(part, add_special_tokens=False)["input_ids"]
            for part in (prompt, text)
        )
        scores = torch.zeros(1, library.model.config.vocab_size)
        scores[0, ids[-1]] = 1.0
        end = SentenceEnd(library.tokenizer, len(prompt), [0])
        return int(end(torch.tensor([prompt + ids[:-1]]), scores)[0].argmax()) == 0

    assert not ends("Do this", ", in turn:\n4. **The")
    assert not ends("Do this:\n", "4. The")
    assert ends("Do this", ", in turn:\n4. **The** press. The")
    assert ends("It came", " in version 4. The")


def test_a_word_turns_where_the_page_says():
    random = torch.Generator().manual_seed(0)
    values = torch.randint(0, 12, (12, 24), generator=random)
    ids, distances = torch.zeros_like(values), torch.rand(12, 24, generator=random) * 30
    ids[3, 10:] = ids[4] = -1
    logits = torch.randn(12, 40, generator=random) * 2
    logits[5, values[5, 0]] = -1e9
    neighbors = from_distances(ids, distances.masked_fill(ids < 0, float("inf")), values, "l2")
    log_p_lm = torch.log_softmax(logits, -1)
    weights = drop_impossible(Weighing(5.0).log_weights(neighbors), values, log_p_lm)
    turned = 0
    for one in (slice(row, row + 1) for row in range(12)):

        def best(lmbda, one=one):
            return int(mix(log_p_lm[one], weights[one], values[one], lmbda).argmax())

        chosen = best(0.3)
        vote = Vote(neighbors[one], weights[one], 0.3, log_p_lm[one])
        turns = {edge: (at, other) for edge, at, other in turns_of(vote, chosen)}
        for edge, sign, last in (("from", 1, 0.999), ("below", -1, 0.001)):
            if edge not in turns:
                assert best(last) == chosen
                continue
            at, other = turns[edge]
            assert best(min(1.0, max(0.0, at + sign * 1e-3))) == other
            assert best(at - sign * 1e-3) == chosen
            turned += 1
    assert turned > 3


def test_explaining_is_the_librarys_explain(session, library):
    text = "The remedy for E272 is to test the main fuse."
    found = session.explain(text, MANUAL, Deadline(60))
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
    settings = {"new_tokens": 20, "sampling_temperature": 2.5}
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
        if answers["knn"].tokens > 12:
            deadline.cancel()
    found = answers["knn"]
    assert found.done
    assert found.stopped == "stopped"
    assert 0 < found.tokens < 120
    assert len(found.trace[0].tokens) == found.tokens
    # It ends with a whole word.
    whole = last(session.write(wanted, Deadline(60)))["knn"].text
    assert whole.startswith(found.text)
    assert whole[len(found.text)].isspace()


def test_a_text_ends_when_its_time_is_up_or_nobody_reads_on(session):
    found = last(session.write(writing_of("The", MANUAL, new_tokens=120), Deadline(0.05)))
    assert found["knn"].stopped == "the time is up"
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
        ({"seed": -1}, "Seed: "),
        ({"seed": None}, "Seed: "),
        ({"sampling_temperature": float("nan")}, "Randomness: "),
        ({"seed": 10**400}, "Seed: "),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(session, settings, message):
    with pytest.raises((RequestError, LimitError)) as caught:
        run(session, **settings)
    line = friendly(caught.value)
    assert message in line
    assert "\n" not in line


def test_an_unexpected_error_tells_nothing():
    assert "secret" not in friendly(RuntimeError("secret"))
    assert "/srv" not in friendly(ConfigError("the folder /srv/store is bad"))


def test_a_prompt_and_its_answer_must_fit_the_model(library):
    wide = Session(library, Limits(prompt_tokens=256, new_tokens=200))
    with pytest.raises(LimitError, match="context of 256"):
        run(wide, "word " * 100, new_tokens=200)


def test_examples_are_prose(library, tmp_path):
    """Of a document the first sentence is no part of its text, unless it is the only one."""
    head = "PEP: 302\nAuthor: Just van Rossum <just@letterror.com>\n\nAbstract\n========\n\n"
    first = "This PEP proposes to add a new set of import hooks that offer better customization.\n"
    code = "Code that calls ``find_module(name)`` is shown where the hooks are described below.\n"
    last = "The new hooks can be injected into the import mechanism by anybody who wants to.\n"
    model, tokenizer = library.model, library.tokenizer
    for number, (text, begins) in enumerate(
        ((head + first + code + last, "The new hooks can be"), (head + first, "This PEP proposes"))
    ):
        texts, folder = [text, "x = 1\ny = f(x)\n" * 20], tmp_path / str(number)
        store = build_datastore(model, tokenizer, texts, folder, calibrate=False)
        assert sentences(store, tokenizer, 1)[0].startswith(begins)


def test_a_chat_suggests_questions_about_headings_of_the_documents(library, tmp_path):
    for name, heading in (("lamp", "Repairs of the lamp"), ("boat", "Why repair the boat?")):
        text = f"# The {name}\n\n## 2. Notes\n\nIt is old.\n\n## {heading}\n\nOil it."
        (tmp_path / f"{name}.md").write_text(text)
    read = read_corpus([str(tmp_path / f"{name}.md") for name in ("lamp", "boat")])
    store = build_datastore(library.model, library.tokenizer, read, tmp_path / "s", calibrate=False)
    own = copy.deepcopy(library.tokenizer)
    for template, questions in (
        ("", ()),
        (
            "{{ messages }}",
            ("What does it say about “Repairs of the lamp”?", "Why repair the boat?"),
        ),
    ):
        own.chat_template = template
        assert Library.of("tiny", library.model, own, [store]).questions == questions


def test_a_long_text_is_explained_in_windows(session, library):
    sentence = "The remedy for E272 is to test the main fuse. "
    found = session.explain(sentence * 24, MANUAL, Deadline(60))
    assert found.tokens > library.context
    with pytest.raises(LimitError, match="the time limit of 0 seconds"):
        session.explain(sentence, MANUAL, Deadline(0.0))
    with pytest.raises(LimitError, match="the limit is 800"):
        session.explain(sentence * 400, MANUAL, Deadline(60))


def test_a_removed_document_is_gone_from_an_open_page(library, tmp_path):
    texts = ["The mill grinds rye.", "The pump needs oil."]
    store = build_datastore(
        library.model, library.tokenizer, texts, tmp_path / "n", calibrate=False
    )
    both = Library.of("tiny", library.model, library.tokenizer, [store, Datastore(store.folder)])
    assert list(both.stores) == ["n", "n#2"]
    opened = Library.of("tiny", library.model, library.tokenizer, [store])
    session, lookup = Session(opened), Lookup(("n",))
    assert not session.stores(lookup)["n"].manifest.removed
    remove_documents(tmp_path / "n", ["0"])
    assert session.stores(lookup)["n"].manifest.removed == (0,)
    assert opened.memory.stores == [opened.store]
