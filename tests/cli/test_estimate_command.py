"""`knn-logits estimate`: what is said before there is a datastore, and what is refused."""

import json

import pytest


def test_a_corpus_by_kind_of_index(run, model_folder, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("The crane lifts a crate. " * 300, encoding="utf-8")
    shape = ("--window", 64, "--stride", 32, "--index", "IVF8,SQ8")
    plain = run("estimate", model_folder, corpus, *shape).out
    assert "IVF8,SQ8 *" in plain
    assert "8 GB of memory" in plain
    assert "nothing was written" in plain
    said = json.loads(run("estimate", model_folder, corpus, *shape, "--json").out)
    dry = json.loads(run("build", model_folder, corpus, *shape, "--dry-run", "--json").out)
    for name in ("documents", "tokens", "entries", "bytes"):
        assert said[name] == dry[name]
    first = said["kinds"][0]
    assert first["chosen"]
    assert first["bytes"] == said["bytes"]
    assert first["building_memory"] == pytest.approx(dry["building_memory"], rel=0.2)
    assert {one["index"] for one in said["kinds"]} >= {"IVF8,SQ8", "exact"}
    assert first["this_machine"]


def test_tokens_alone(run):
    said = json.loads(run("estimate", "--tokens", "1e5", "--dim", 64, "--json").out)
    assert (said["tokens"], said["entries"], said["seconds"]) == (100_000, 99_999, None)
    assert "pass --layers" in run("estimate", "--tokens", "1e5", "--dim", 64).out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "pass either documents or a number"),
        (["model", "corpus", "--tokens", "1e6"], "pass either documents or a number"),
        (["--tokens", "1e6"], "pass either a model or the dimension"),
        (["model", "--tokens", "1e6", "--dim", "64"], "pass either a model or the dimension"),
        (["model", "--tokens", "1e6", "--layers", "2"], "--layers is only valid with --dim"),
        (["--tokens", "many", "--dim", "64"], "such as 3e9"),
        (["--tokens", "1e99", "--dim", "64"], "such as 3e9"),
        (["--tokens", "nan", "--dim", "64"], "such as 3e9"),
    ],
)
def test_what_is_refused(run, given, said):
    answer = run.refused("estimate", *given)
    assert said in answer.err
