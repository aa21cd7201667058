"""`knn-logits eval` as a user meets it."""

import pytest
from commands import write_corpus

TEXT = "The harbour crane lifts twelve crates, and Queen Maira reads the barometer. " * 6


@pytest.fixture
def text(tmp_path):
    return write_corpus(tmp_path / "text.jsonl", [TEXT, "The keeper lights the lamp."])


def test_json(run, model_folder, store, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(TEXT)
    result = run.good("eval", model_folder, store.folder, text, other, "--json")
    assert len(result.out.splitlines()) == 1
    content = result.json
    assert set(content["perplexity"]) == {"lm", "knn", "interpolated"}
    assert (content["documents"], content["searches"]) == (3, content["tokens"])
    assert content["searches_saved"] == 0
    assert content["tokens_per_second"] > 0
    assert content["settings"]["k"] == 16
    assert content["settings"]["window"] == 64


def test_for_people(run, model_folder, store, text):
    result = run.good("eval", model_folder, store.folder, text, "--lmbda", 0.3, "--window", 32)
    for words in ("by the mixture", "the mixture by the model: ", "95% interval", "lmbda 0.3"):
        assert words in result.out
    command = ("eval", model_folder, store.folder, text, "--retomaton", "--max-knns", 7)
    people = run.good(*command).out
    assert "min_knns 1, max_knns 7, pointer_weight 20.0" in people
    assert " saved" in people


@pytest.mark.parametrize("name", ["eval", "explain"])
def test_the_infini_gram_is_asked_for(run, model_folder, copied, text, name):
    words = TEXT if name == "explain" else text
    run.good("index", copied, "--suffixes")
    plain = run(name, model_folder, copied, words, "--json")
    with_it = run.good(name, model_folder, copied, words, "--infini-gram", "0.4", "--json")
    part = "perplexity" if name == "eval" else "tokens"
    assert with_it.json[part] != plain.json[part]


def test_mistakes_are_one_line(run, model_folder, store, text, tmp_path):
    for args, expected in (
        ((store.folder,), "no text given"),
        ((store.folder, "data/held"), "data/held does not exist, so it was taken for a"),
        ((store.folder, "data/held.jsonl"), "'data/held.jsonl' does not exist"),
        ((store.folder, "data/held.DOCX"), "'data/held.DOCX' does not exist"),
        ((tmp_path / "nowhere", text), "does not exist"),
        ((store.folder, text, "--window", 8, "--stride", 9), "larger than window"),
    ):
        result = run.refused("eval", model_folder, *args)
        assert expected in result.line
    for content, expected in (("", "no readable document"), ("a", "has no token to predict")):
        (tmp_path / "short.txt").write_text(content)
        result = run.refused("eval", model_folder, store.folder, tmp_path / "short.txt", "--json")
        assert (result.out, expected in result.err) == ("", True)
