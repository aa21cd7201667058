"""`knn-logits tune`, and what `build` and `eval` do with its parts."""

import pytest
from commands import write_corpus
from conftest import TEXTS

DOCUMENTS = [f"{TEXTS[n % 8]} And {TEXTS[(n + 3) % 8].lower()} Number {n}." for n in range(8)]


@pytest.fixture
def text(tmp_path):
    return write_corpus(tmp_path / "text.jsonl", DOCUMENTS)


def test_json_and_write(run, model_folder, copied, text, tmp_path):
    result = run.good("tune", model_folder, copied, text, "--k", 32, "--json")
    assert len(result.out.splitlines()) == 1
    content = result.json
    assert set(content) >= {"lmbda", "temperature", "k", "perplexity", "settings_tried", "seconds"}
    assert content["settings_tried"] >= 1000
    assert content["perplexity"] < content["perplexity_lm"]
    assert run("info", copied, "--json").json["settings"]["calibrated"] is False
    stored = write_corpus(tmp_path / "stored.jsonl", TEXTS)
    refused = run.refused("tune", model_folder, copied, stored, "--k", 32, "--write", "--json")
    assert "the settings were not stored" in refused.err
    assert "--allow-overlap" in refused.json["refused"]
    assert run("info", copied, "--json").json["settings"]["calibrated"] is False
    quiet = run("tune", model_folder, copied, stored, "--k", 8, "--allow-overlap", "--json")
    assert "runs of 13" not in quiet.err
    assert quiet.json["overlap"] is None
    few = run.refused("tune", model_folder, copied, text, "--k", 32, "--write", "--allow-overlap")
    assert "is not significantly better than the stored settings" in few.err
    written = run.good("tune", model_folder, copied, text, "--k", 32, "--write", "--force")
    assert "settings written" in written.out
    settings = run("info", copied, "--json").json["settings"]
    assert settings["calibrated"] is True
    assert settings["tuned"] is True
    assert "(tuned on text given for it)" in run("info", copied).out
    assert settings["lmbda"] == content["lmbda"]
    assert settings["k"] == content["k"]


def test_for_people(run, model_folder, copied, tmp_path):
    stored = write_corpus(tmp_path / "stored.jsonl", TEXTS)
    result = run.good("tune", model_folder, copied, stored, "--k", 8)
    assert "other tokens" in result.out
    assert "tune on text that is not in the datastore" in result.out
    assert "in the datastore, in runs of 13" in result.err


def test_what_followed_pointers_is_named(run, model_folder, copied, text, tmp_path):
    command = ("eval", model_folder, copied, text, "--retomaton", "--max-knns", 7)
    found = run.good(*command, "--json")
    settings = found.json["settings"]
    assert (settings["retomaton"], settings["min_knns"], settings["max_knns"]) == (True, 1, 7)
    people = run(*command)
    assert "min_knns 1, max_knns 7, pointer_weight 20.0" in people.out
    assert f"{found.json['searches_saved']:,} saved" in people.out
    assert run("eval", model_folder, copied, text, "--json").json["settings"]["retomaton"] is False


def test_mistakes_are_one_line(run, model_folder, copied, text, tmp_path, monkeypatch):
    short = tmp_path / "short.txt"
    short.write_text("a")
    for args, expected in (
        ((copied,), "no text given"),
        ((copied, short), "dozens of documents"),
        ((copied, text, "--k", 0), "k must be"),
        ((copied, copied, text), "tune each datastore separately"),
    ):
        result = run.refused("tune", model_folder, *args)
        assert expected in result.err
        lines = [line for line in result.err.splitlines() if line.startswith("knn-logits: ")]
        assert len(lines) == 1


@pytest.mark.parametrize("command", [("eval",), ("explain",)])
def test_the_infini_gram_is_asked_for(run, model_folder, copied, text, command):
    name, *option = command
    words = [*option, TEXTS[1]] if name != "eval" else [text]
    run.good("index", copied, "--suffixes")
    plain = run(name, model_folder, copied, *words, "--json")
    with_it = run.good(name, model_folder, copied, *words, "--infini-gram", "0.4", "--json")
    part = "perplexity" if name == "eval" else "tokens"
    assert with_it.json[part] != plain.json[part]
