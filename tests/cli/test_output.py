"""What reaches a terminal or a pipe: no finished work is lost, and no text of others steers."""

import io
import json
import sys
import time

import pytest
from conftest import TEXTS

from knn_logits import Datastore
from knn_logits.cli.bars import Bars

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "λ-text.txt"
    path.write_text(TEXTS[1] + " λ → ≥")
    return path


@pytest.fixture
def run_in(run, monkeypatch):
    """Runs a command whose output has an encoding, and returns its status and that output."""

    def call_in(encoding, *args):
        raw = io.BytesIO()
        with monkeypatch.context() as patch:
            stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
            patch.setattr(sys, "stdout", stream)
            done = run(*args)
        return done, raw.getvalue().decode(encoding)

    return call_in


def test_no_work_is_lost_on_an_output_that_is_not_utf8(run_in, model_folder, copied, text):
    encoding = "ascii"
    done, out = run_in(encoding, "explain", model_folder, copied, text)
    assert (done.code, "\\u2192" in out) == (0, True), done.err
    prompt = ("--prompt", "The λ crane", "--max-new-tokens", 4, "--lmbda", 0.9)
    done, out = run_in(encoding, "generate", model_folder, copied, *prompt, "--explain")
    assert (done.code, "The \\u03bb crane" in out) == (0, True), done.err
    for command in (
        ("explain", model_folder, copied, text),
        ("generate", model_folder, copied, *prompt),
    ):
        done, out = run_in(encoding, *command, "--json")
        assert done.code == 0, done.err
        assert "λ" in json.dumps(json.loads(out), ensure_ascii=False)


@pytest.fixture
def hostile(copied):
    """A datastore whose publisher wrote control sequences and line breaks into its manifest."""
    manifest = Datastore(copied).manifest
    foreign = f"gpt2\nlicense    free{CLIPBOARD}\u202e"
    manifest.model_copy(
        update={
            "model": manifest.model.model_copy(update={"id": foreign}),
            "tokenizer": manifest.tokenizer.model_copy(update={"id": foreign, "sha256": "0" * 64}),
            "source": foreign,
        }
    ).write(copied)
    return copied


def test_a_manifest_does_not_steer_and_forges_no_line(run, model_folder, hostile):
    found = run.good("info", hostile)
    assert not set(found.out) & set("\x1b\x07\u202e")
    assert not [line for line in found.out.splitlines() if line.startswith("license")]
    refused = run("explain", model_folder, hostile, "some text")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert not set(refused.err) & set("\x1b\x07\u202e")
    plain = json.loads(run("info", hostile, "--json").out)
    assert plain["source"] == Datastore(hostile).manifest.source


def test_what_a_corpus_wrote_does_not_steer(run, build, model_folder, tmp_path):
    text = f"The harbour crane{CLIPBOARD} lifts twelve crates."
    store = build([text], tmp_path / "s", k=8, lmbda=0.99, temperature=0.1)
    prompt = ("--prompt", "The harbour crane", "--max-new-tokens", 12)
    for command in (
        ("generate", model_folder, store.folder, *prompt),
        ("generate", model_folder, store.folder, *prompt, "--explain"),
        ("explain", model_folder, store.folder, text),
    ):
        found = run.good(*command)
        assert "52;c" in found.out
        assert not set(found.out) & set("\x1b\x07")


@pytest.fixture
def no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "folder"


def never(*_, **__):
    raise AssertionError("the model was loaded")


def test_what_the_model_is_not_needed_for_is_refused_before_it_is_loaded(
    run, model_folder, copied, text, no_folder, monkeypatch
):
    monkeypatch.setattr("knn_logits.cli.loading.RunOptions.load", never)
    for command, reason in (
        (("eval", model_folder, copied, text, "--per-token", no_folder), "cannot be written"),
        (("eval", model_folder, copied, text, "--per-token", copied), "cannot be written"),
        (("explain", model_folder, copied, "nosuch.txt"), "there is no file nosuch.txt"),
        (("explain", model_folder, copied, ""), "the text is empty"),
        (("explain", model_folder, copied, " \n"), "the text is empty"),
        (("eval", model_folder, copied, "none.txt"), "'none.txt' does not exist"),
        (("tune", model_folder, copied, "none.txt"), "'none.txt' does not exist"),
    ):
        assert reason in run.refused(*command).line, command


@pytest.mark.parametrize("name", ["./modle", "models/tiny/modle", "modle/"])
def test_a_mistyped_folder_is_named_as_such(run, copied, name):
    found = run.refused("generate", name, copied, "--prompt", "The")
    assert "there is no such folder or model on the Hub" in found.err


def test_progress_that_is_piped_is_whole_lines_now_and_then(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Bars("again") as bars:
        for now[0], *steps in (
            (0.1, "index exact", 0, None),
            (1.0, "keys", 0, 20_000),
            (16.0, "keys", 5_000, 20_000),
            (17.0, "keys", 6_000, 20_000),
            (32.0, "tokens", 7_000, None),
            (48.0, "recall", 0, None),
        ):
            bars(*steps)
    assert capsys.readouterr().err.splitlines() == [
        "knn-logits: keys: 5,000 of 20,000",
        "knn-logits: tokens: 7,000",
        "knn-logits: recall",
    ]
