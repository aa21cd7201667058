"""A suffix weight on the command line: given to a build, kept, and said wherever k and λ are."""

import io
import shutil
import sys

import pytest
from commands import write_corpus
from conftest import TEXTS

DOCUMENTS = [f"{one} {two}" for one in TEXTS[:4] for two in TEXTS[:4]]
WORDS = "suffix weight 3"


@pytest.fixture(scope="module")
def folder(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weighed") / "s"
    build(DOCUMENTS, folder, index="exact", suffix_weight=3.0, lmbda=0.5)
    return folder


@pytest.fixture
def text(tmp_path):
    documents = [f"{TEXTS[n % 4]} {TEXTS[4 + n % 4]}" for n in range(8)]
    return write_corpus(tmp_path / "text.jsonl", documents)


def test_a_build_keeps_the_weight_that_is_given(run, model_folder, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", DOCUMENTS)
    options = ("--window", 64, "--stride", 32, "--lmbda", 0.5)
    given = ("--suffix-weight", 3)
    found = run.good("build", model_folder, corpus, "--out", tmp_path / "a", *options, *given)
    (line,) = [one for one in found.out.splitlines() if one.startswith("settings (")]
    assert line.endswith(WORDS)
    info = run("info", tmp_path / "a", "--json").json
    assert info["settings"]["suffix_weight"] == 3.0
    # The weight that a build would choose for this text is not the one that is given.
    chosen = run("build", model_folder, corpus, "--out", tmp_path / "b", *options, "--json").json
    assert chosen["suffix_weight"] == 4.0
    plain = ("--suffix-weight", 1, "--json")
    found = run("build", model_folder, corpus, "--out", tmp_path / "c", *options, *plain)
    assert found.json["suffix_weight"] == 1.0
    assert "suffix weight" not in run("info", tmp_path / "c").out
    more = ("--no-calibrate", *given, "--json")
    found = run("build", model_folder, corpus, "--out", tmp_path / "d", *options, *more)
    assert (found.json["calibrated"], found.json["suffix_weight"]) == (False, 3.0)
    run.good("build", model_folder, corpus, "--dry-run", *given)


def test_what_is_said_to_people_names_it(run, model_folder, folder, text, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "s")
    assert WORDS in next(one for one in run("info", copy).out.splitlines() if "settings" in one)
    assert "suffix_weight 3.0" in run("eval", model_folder, copy, text).out
    tuned = run("tune", model_folder, copy, text, "--k", 32, "--allow-overlap")
    assert f"{WORDS}: the best of" in tuned.out.splitlines()[0]
    plain = run("tune", model_folder, copy, text, "--k", 8, "--suffix-weight", 1)
    assert "suffix weight" not in plain.out


def test_what_is_said_to_programs_names_it(run, model_folder, folder, text):
    tuned = run("tune", model_folder, folder, text, "--k", 8, "--allow-overlap", "--json").json
    assert tuned["suffix_weight"] == 3.0
    call = ("generate", model_folder, folder, "--prompt", TEXTS[0][:20], "--max-new-tokens", 3)
    assert run(*call, "--json").json["suffix_weight"] == 3.0
    assert run(*call, "--suffix-weight", 2, "--json").json["suffix_weight"] == 2.0
    assert (
        run("eval", model_folder, folder, text, "--json").json["settings"]["suffix_weight"] == 3.0
    )


def test_a_conversation_names_it_and_changes_it(run, model_folder, folder, monkeypatch):
    lines = ("/settings", "/set suffix_weight 2", "/set suffix_weight 1", "/set suffix_weight 0")
    text = io.StringIO("".join(f"{line}\n" for line in lines))
    text.isatty = lambda: False
    monkeypatch.setattr(sys, "stdin", text)
    done = run("chat", model_folder, folder)
    # Long lines are broken at the width of a terminal.
    own, two, one, _ = " ".join(done.out.split()).split("the memory is on")
    assert "; suffix weight " in own
    assert "; suffix weight 2; " in two
    assert "suffix weight" not in one
    assert "suffix_weight must be above 0" in done.err
    text = io.StringIO("/settings\n")
    text.isatty = lambda: False
    monkeypatch.setattr(sys, "stdin", text)
    given = run("chat", model_folder, folder, "--suffix-weight", 5)
    assert "; suffix weight 5; " in " ".join(given.out.split())


def test_shares_of_several_datastores_can_be_tuned_with(run, model_folder, folder, text, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other")
    call = ("tune", model_folder, folder, other, text, "--k", 8, "--allow-overlap")
    found = run.good(*call, "--weights", "3,1", "--json")
    assert found.json["settings"]["weights"] == "0.75, 0.25"
    wrong = run.refused(*call, "--weights", "3")
    assert "pass one non-negative weight for each" in wrong.err
