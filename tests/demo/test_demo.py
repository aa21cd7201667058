"""The demo that the repository carries: its corpora, its model, and what `make demo` prints."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from forked import Fork

import knn_logits

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "datastores" / "demo"


@pytest.fixture(scope="module")
def loaded(scripts):
    return scripts["demo"].load_model()


@pytest.fixture(scope="module")
def stores(scripts, loaded, demo_folder):
    """A folder with both datastores, and the datastores."""
    from rich.console import Console

    with Console(quiet=True) as console, FileLock(f"{demo_folder}.lock"):
        opened = {
            kind: scripts["demo"].open_store(kind, *loaded, demo_folder, console)
            for kind in ("manual", "chronicle")
        }
    return demo_folder, opened


@pytest.mark.parametrize("kind", ["manual", "chronicle"])
def test_the_corpora_and_questions_are_what_the_generator_makes(scripts, kind):
    text = scripts["text"]
    rows = list(text.corpus_rows(kind))
    assert (DEMO / f"{kind}.jsonl").read_text(encoding="utf-8") == text.to_lines(rows)
    assert len(rows) == 200
    questions = text.make_questions(kind)
    kept = (DEMO / "questions" / f"{kind}.jsonl").read_text(encoding="utf-8")
    assert kept == text.to_lines(questions)
    assert [row["half"] for row in questions].count("final") == 150
    page = {row["id"]: row["text"] for row in rows}
    everything = " ".join(page.values())
    for row in questions:
        assert f"{row['seen']} {row['answer']}." in page[row["document"]]
        for wording in ("new", "strange"):
            assert row[wording] not in everything


def test_no_pattern_of_a_question_is_a_pattern_of_a_document(scripts):
    words = scripts["words"]
    for kinds in words.RELATIONS.values():
        for relation, (documents, questions) in kinds.items():
            assert not set(documents) & set(questions)
            assert words.STRANGE[relation] not in (*documents, *questions)


@pytest.mark.parametrize(
    "number", [20, pytest.param(40, marks=(pytest.mark.slow, pytest.mark.soak))]
)
@pytest.mark.parametrize("kind", ["manual", "chronicle"])
def test_the_model_answers_with_the_datastore_and_not_without(
    scripts, loaded, stores, kind, number
):
    rows = scripts["demo"].questions_of(kind, "tuning")[:number]
    store = stores[1][kind]
    without = scripts["evaluate"].count(*loaded, store, rows, None)
    assert without["seen"] < 0.05
    assert without["new"] < 0.05
    gate = knn_logits.load_gate(scripts["demo"].gate_file(kind))
    settings = scripts["demo"].SETTINGS
    with_store = scripts["evaluate"].count(*loaded, store, rows, settings, gate)
    assert with_store["seen"] >= 0.95
    assert with_store["new"] >= 0.9
    assert with_store["sources"] >= 0.9


@pytest.mark.parametrize(
    "number", [30, pytest.param(60, marks=(pytest.mark.slow, pytest.mark.soak))]
)
@pytest.mark.parametrize("kind", ["manual", "chronicle"])
def test_what_no_document_answers_is_told_apart(scripts, loaded, stores, kind, number):
    free, evaluate = scripts["free"], scripts["evaluate"]
    known = free.grammar_questions(kind, number, free.SEEDS["tuning"], held_out=False)
    unknown = free.unanswerable(kind, number, free.SEEDS["tuning"], held_out=False)
    with knn_logits.KNNLogitsProcessor(loaded[0], stores[1][kind]) as knn:
        said = [
            [answer for answer, _ in evaluate.answers(*loaded, [r["prompt"] for r in rows], knn, 0)]
            for rows in (known, unknown)
        ]
    right = [row["answer"] in answer for row, answer in zip(known, said[0], strict=True)]
    assert sum(right) / len(right) >= 0.8
    assert sum(map(free.is_silent, said[0])) / len(right) <= 0.15
    assert sum(map(free.is_silent, said[1])) / len(unknown) >= 0.8


@pytest.mark.parametrize(
    ("kind", "prompt", "value"),
    [
        ("manual", "Who makes K-5750?", "Yarwerk"),
        ("chronicle", "Where was Abbot Toril born?", None),
        ("manual", "How do I fix E000?", "No document says that"),
    ],
)
def test_an_answer_ends_after_its_sentence(scripts, loaded, stores, kind, prompt, value):
    model, tokenizer = loaded
    if value is None:
        value = next(
            fact[3]
            for fact in scripts["free"].facts_of(kind)
            if (fact[1].name, fact[2]) == ("Abbot Toril", "birth")
        )
    inputs = tokenizer(prompt, return_tensors="pt")
    with knn_logits.KNNLogitsProcessor(model, stores[1][kind]) as knn:
        output = model.generate(
            **inputs, do_sample=False, max_new_tokens=40, logits_processor=[knn]
        )
    written = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    assert written == f" {value}.{tokenizer.eos_token}"


@pytest.mark.parametrize("kind", ["manual", "chronicle"])
def test_the_gate_leaves_other_text_alone(scripts, loaded, stores, kind):
    demo, evaluate = scripts["demo"], scripts["evaluate"]
    gate = knn_logits.load_gate(demo.gate_file(kind))
    texts = evaluate.ordinary_texts(kind, 12, seed=5)
    assert len(texts) == 3
    for some in texts.values():
        found = evaluate.perplexity(*loaded, stores[1][kind], some, demo.SETTINGS, gate)
        assert found["change"] <= 0.04  # 1.3% over more text: results.json


def test_the_gates_are_fitted_on_the_tuning_half(scripts, loaded, stores, monkeypatch):
    gates, asked = scripts["gates"], []

    def questions_of(kind, half):
        asked.append(half)
        return original(kind, half)[:5]

    original = scripts["demo"].questions_of
    monkeypatch.setattr(scripts["demo"], "questions_of", questions_of)
    features, by_lm, by_knn = gates.arrays_to_fit("manual", *loaded, stores[1]["manual"], 2, 12)
    assert set(asked) == {"tuning"}
    seeds = scripts["evaluate"].SEEDS
    assert seeds["tuning"] != seeds["final"]
    assert features.shape == (len(by_lm), 6)
    assert len(by_lm) == len(by_knn) > 200
    assert max(by_lm.max(), by_knn.max()) <= 1e-6
    # The nearest similarity, and what the demo's answers live on: neighbors that know better.
    assert 0.2 < features[:, 0].min() < features[:, 0].max() < 1.001
    assert (by_knn > by_lm + 1).mean() > 0.1


@pytest.mark.parametrize(
    "prompt",
    [
        "The",
        "The chronicle of",
        "Service note for the",
        "Wear",
        "Part",
        "In spring",
        "A",
        "Few names",
        "Nobody",
        "One day",
        "Among",
        "Never",
    ],
)
def test_greedy_text_has_no_loop(loaded, prompt):
    model, tokenizer = loaded
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, do_sample=False, max_new_tokens=60)
    text = tokenizer.decode(output[0], skip_special_tokens=True)
    sentences = re.findall(r"[^.]+\.", text)
    assert sentences
    assert len(set(sentences)) == len(sentences)


def test_a_neighbor_is_judged_by_the_next_two_tokens(scripts):
    # Two neighbors of the first state go on with its token, but only the second with its next two.
    target, after = torch.tensor([5, 5, 5]), torch.tensor([7, 8, 7])
    text = torch.tensor([0, 1, 2])
    first_near = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.5]])
    second_near = torch.tensor([[1.0, 0.0], [1.0, 0.5], [1.0, 0.1]])
    keys, facts = scripts["keys"], torch.full((3,), -1)

    def loss(vectors, after):
        return keys.document_loss(keys.States(vectors, target, after, text, facts))

    wrong, right = (loss(vectors, after) for vectors in (first_near, second_near))
    assert wrong[0] > right[0] + 0.1
    assert wrong[1] == right[1] == 1.0  # the next token alone is the same
    # The end of a text fits any token.
    assert loss(first_near, torch.tensor([7, 0, 7]))[0].abs() < 1e-6


def test_the_model_is_small():
    assert sum(file.stat().st_size for file in (DEMO / "model").iterdir()) <= 12_000_000
    log = (DEMO / "training.jsonl").read_text(encoding="utf-8").splitlines()
    # On one thread; the seconds by the clock depend on what else runs.
    assert json.loads(log[-1])["cpu_seconds"] < 120 * 60


def test_the_script_shows_answers_and_sources(stores):
    def script():
        sys.argv = ["demo.py", "--questions", "2", "--stores", str(stores[0])]
        runpy.run_path(str(DEMO / "demo.py"), run_name="__main__")

    with Fork(script) as done:
        out, errors = done.ended()
    assert done.returncode == 0, errors
    for part in (
        "without kNN",
        "with kNN",
        "its share in the word",
        "% by the neighbors",
        "knn-logits build gpt2 my-folder/ --out store/",
    ):
        assert part in out
    assert isinstance(stores[1]["manual"], knn_logits.Datastore)


def test_a_change_of_the_corpus_builds_anew(scripts, loaded, stores, tmp_path, monkeypatch):
    from rich.console import Console

    rows = (DEMO / "manual.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "manual.jsonl").write_text("".join(rows[:5]), encoding="utf-8")
    monkeypatch.setattr(scripts["demo"], "HERE", tmp_path)
    with Console(quiet=True) as console:
        store = scripts["demo"].open_store("manual", *loaded, stores[0], console)
    assert store.manifest.documents == 5


@pytest.mark.parametrize(
    ("kind", "prompt", "near"),
    [
        ("manual", "Our K-8302 looks worn, when should we swap it?", True),
        ("manual", "Our K-0000 looks worn, when should we swap it?", False),
        ("chronicle", "Regarding a town called Velbridge: what is the historical founder?", True),
        ("chronicle", "Regarding a town called Atlantis: what is the historical founder?", False),
    ],
)
def test_a_question_in_other_words_is_near_without_a_gate(loaded, stores, kind, prompt, near):
    model, tokenizer = loaded
    with knn_logits.KNNLogitsProcessor(model, stores[1][kind], lmbda=0.7) as knn:
        output = knn.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=4)
        found = knn.trace(output, tokenizer)[0]
    assert found.familiarity.hits < 0.6 * found.familiarity.places
    assert found.near is near


@pytest.mark.parametrize("draft", [True, False])
def test_an_answer_is_never_empty(loaded, stores, draft):
    model, tokenizer = loaded
    inputs = tokenizer("I need the birthplace of Count Veldric.", return_tensors="pt")
    with knn_logits.KNNLogitsProcessor(model, stores[1]["chronicle"]) as knn:
        output = knn.generate(**inputs, draft=draft, do_sample=False, max_new_tokens=20)
    written = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert written.strip()
